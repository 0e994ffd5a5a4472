// One case: Kascade's attention (arXiv 2512.16391) in one layer or in all layers of a plan, or dense softmax
// or exact entmax beside it. Python does the measuring (experiments/peers/torch_kascade.py): what a user of
// PyTorch gets.

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/kinds/support/timing.h"
#include "experiments/kinds/support/torch_peers.h"

namespace splash::experiments {
namespace {

constexpr const char* kLayersNotRun = "the case was not run (column version says why)";
constexpr const char* kNoLists =
    "of attention to all keys, or the case was not run (column version says why)";
constexpr const char* kNoError = "of dense attention, or the case was not run (column version says why)";

bool is_of_layers(const Parameters& p) {
  return get_text(p, "implementation").find("-layers") != std::string::npos;
}

bool has_lists(const Parameters& p) {
  return get_text(p, "implementation").starts_with("kascade-");
}

std::vector<report::ColumnInfo> kascade_columns() {
  std::vector<report::ColumnInfo> columns = time_columns(kLayersNotRun);
  const auto measured = [&](auto... words) { columns.push_back(taken(words...)); };
  measured("keys_kept", "1", "keys that a tile of queries shares", "mean over tiles", kNoLists);
  columns.back().reproducible = true;
  measured("differing_keys", "1", "keys in which a tile's list differs from float64's",
           "of the first, the middle and the last tile of each key head of one sequence, the largest number",
           kNoLists);
  measured("relative_error", "1",
           "error of the output of these tiles, given the lists; of entmax in some rows",
           "||out - float64's|| / ||float64's||", kNoError);
  measured("peak_memory_bytes", "bytes",
           "device memory beyond the inputs at the peak of one call, results included, and one copy of the "
           "keys in 8 bits where such a copy is kept",
           "of PyTorch's allocator", kLayersNotRun);
  measured("device_name", "text", "what computed", "as PyTorch says", kLayersNotRun);
  columns.back().is_text = true;
  for (report::ColumnInfo& info : run_columns()) columns.push_back(std::move(info));
  return columns;
}

class GpuKascade : public Kind {
 public:
  std::string name() const override { return "gpu-kascade"; }
  std::string summary() const override {
    return "time and error of Kascade's anchors, of the layers that reuse their keys, and of all layers of a "
           "plan, beside dense attention and exact entmax";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    return {
        {"implementation",
         text,
         std::string("kascade-layers"),
         "",
         "an anchor that finds keys, attention to them, or all layers of a plan, the time of which is a "
         "layer's in the mean (of a step of decoding, -8-bits: anchors choose by keys in 8 bits, to which "
         "each adds the new ones; -pages: keys and values lie in pages of 64); PyTorch's dense softmax, in "
         "one layer, or in all by cuDNN (by flash where cuDNN takes no such call); exact entmax at alpha "
         "1.5, a step over pages with copies in 4 bits",
         {"kascade-anchor", "kascade-reuse", "kascade-layers", "kascade-anchor-8-bits",
          "kascade-layers-8-bits", "kascade-layers-pages", "softmax-cudnn", "softmax-flash", "softmax-layers",
          "entmax", "entmax-layers"}},
        {"batch", integer, int64_t{1}, "1", "sequences", {}},
        {"q_len",
         integer,
         int64_t{32768},
         "1",
         "queries of a sequence, its last tokens; 1 is a step of decoding",
         {}},
        {"kv_len", integer, int64_t{32768}, "1", "keys of a sequence", {}},
        {"heads", integer, int64_t{32}, "1", "heads of the queries", {}},
        {"kv_heads", integer, int64_t{8}, "1", "heads of keys and values", {}},
        {"head_dim", integer, int64_t{128}, "1", "numbers a head", {}},
        {"temperature", number, 2.449, "1", "standard deviation of q; k and v have 1", {}},
        {"share", number, 0.1, "1", "of the keys that a tile's last query sees, which the tile keeps", {}},
        {"least_keys", integer, int64_t{128}, "1", "that a tile keeps, if its last query sees so many", {}},
        {"layers", integer, int64_t{32}, "1", "of the plan, the first dense and an anchor", {}},
        {"anchors", integer, int64_t{5}, "1", "of the plan", {}},
        {"seed", integer, int64_t{1}, "1", "of torch.randn", {}},
        torch_dtype(),
        torch_device(),
        {"samples", integer, int64_t{30}, "1", "timed samples, fewer where a call takes long", {}},
        {"budget", number, 0.5, "s", "for the samples of a case; at least 3 are taken", {}},
    };
  }

  std::vector<report::ColumnInfo> columns() const override { return kascade_columns(); }

  void check(const Parameters& p) const override {
    for (const char* name : {"batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "least_keys",
                             "layers", "anchors", "samples"})
      require_one(p, name);
    const auto require = [&](bool allowed, const char* name, const char* rule) {
      if (!allowed)
        throw InvalidArgument(fmt::format("{} is {}; it must be {}", name, get_integer(p, name), rule));
    };
    require(get_integer(p, "heads") % get_integer(p, "kv_heads") == 0, "heads", "a multiple of kv_heads");
    require(get_integer(p, "q_len") <= get_integer(p, "kv_len"), "q_len", "at most kv_len");
    require(get_integer(p, "anchors") <= get_integer(p, "layers"), "anchors", "at most the layers");
    if (const double share = get_number(p, "share"); !(share > 0 && share <= 1))
      throw InvalidArgument(fmt::format("share is {}; it must be above 0 and at most 1", share));
    for (const char* name : {"temperature", "budget"}) require_positive(p, name);
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = p;
    if (!is_of_layers(p)) kept.erase("layers");
    if (!is_of_layers(p) || !has_lists(p)) kept.erase("anchors");
    if (!has_lists(p)) {
      for (const char* name : {"share", "least_keys"}) kept.erase(name);
    }
    return kept;
  }

  std::string input_hash(const Parameters& p) const override {
    return fmt::format("torch.randn, seed {}", get_integer(p, "seed"));
  }

  CaseResult evaluate(const Parameters& p) const override {
    static PeerProcess peer("torch_kascade.py", "torch and splash_attention");
    return torch_case(peer, p);
  }
};

const GpuKascade kGpuKascade;
const KindRegistration kGpuKascadeRegistration(kGpuKascade);

}  // namespace
}  // namespace splash::experiments
