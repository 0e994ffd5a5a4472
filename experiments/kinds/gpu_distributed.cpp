// One case: causal attention over one sequence whose tokens lie on several GPUs, or the same on one. Python
// does the measuring (experiments/peers/torch_distributed.py starts the ranks); without a GPU, gloo tries it
// on the CPU.

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/kinds/support/timing.h"
#include "experiments/kinds/support/torch_peers.h"

namespace splash::experiments {
namespace {

constexpr const char* kRanksNotRun = "the case was not run (column version says why)";
constexpr const char* kExchangesOnly = "of entmax over several ranks only, where the case was run";

bool is_on_one_gpu(const Parameters& p) {
  const std::string& implementation = get_text(p, "implementation");
  return implementation == "entmax" || implementation == "softmax";
}

bool is_over_several(const Parameters& p) {
  return get_text(p, "implementation").starts_with("entmax-");
}

std::vector<report::ColumnInfo> distributed_columns() {
  std::vector<report::ColumnInfo> columns = time_columns(kRanksNotRun);
  const auto measured = [&](auto... words) { columns.push_back(taken(words...)); };
  const auto told = [&](const char* name, const char* long_name, const char* formula, const char* reason) {
    measured(name, "text", long_name, formula, reason);
    columns.back().is_text = true;
  };
  measured("peak_memory_bytes", "bytes",
           "device memory beyond a rank's q, k, v and d_out at the peak of one call, results included",
           "of PyTorch's allocator, the rank with most; NCCL's own buffers are not among it",
           "the case was not run (column version says why), or on a CPU");
  measured("received_bytes", "bytes", "bytes that a rank receives of the others in one call",
           "gather: 2 kv_heads (ranks - 1) a number of the rank's tokens, thrice with backward; heads: 2 "
           "(heads + kv_heads) (ranks - 1) / ranks, twice with backward",
           kExchangesOnly);
  columns.back().reproducible = true;
  measured("link_rate", "B/s", "rate at which a rank receives of the others in an all-gather",
           "(ranks - 1) part / time, the best of 5 all-gathers of 256 MiB a rank; on a CPU 1 MiB",
           "of one GPU, or the case was not run (column version says why)");
  measured("support_mean", "1", "keys with p > 0 a row", "mean over all rows", kExchangesOnly);
  measured("relative_error", "1", "error of the output against one GPU's",
           "||out - one|| / ||one||, over all ranks",
           "of entmax over several ranks only, where one GPU holds the problem");
  measured("differing_supports", "1", "rows with another number of keys than one GPU finds", "over all ranks",
           "of entmax over several ranks only, where one GPU holds the problem");
  told("mode", "how keys and queries met", "gather, or heads, as auto chose", kExchangesOnly);
  told("device_name", "what computed, on each rank", "as PyTorch says", kRanksNotRun);
  told("computed_in", "in which type it was computed", "dtype, or what auto stood for", kRanksNotRun);
  for (report::ColumnInfo& info : run_columns()) columns.push_back(std::move(info));
  return columns;
}

class GpuDistributed : public Kind {
 public:
  std::string name() const override { return "gpu-distributed"; }
  std::string summary() const override {
    return "time, memory and bytes of exact entmax attention over one sequence on several GPUs, beside one "
           "GPU and "
           "dense attention";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    return {
        {"implementation",
         text,
         std::string("entmax-auto"),
         "",
         "exact entmax on one GPU or over several, by mode; PyTorch's softmax on one (cuDNN), or by its "
         "context_parallel",
         {"entmax", "entmax-gather", "entmax-heads", "entmax-auto", "softmax", "softmax-context-parallel"}},
        {"pass", text, std::string("forward"), "", "what one call does", {"forward", "forward_backward"}},
        {"ranks", integer, int64_t{2}, "1", "GPUs of this machine; with one GPU's implementations 1", {}},
        {"length", integer, int64_t{32768}, "1", "tokens of the whole sequence", {}},
        {"heads", integer, int64_t{16}, "1", "heads of the queries", {}},
        {"kv_heads", integer, int64_t{16}, "1", "heads of keys and values", {}},
        {"head_dim", integer, int64_t{128}, "1", "numbers a head", {}},
        {"alpha", number, 1.5, "1", "of entmax", {}},
        {"temperature", number, 2.449, "1", "standard deviation of q; k and v have 1", {}},
        {"seed", integer, int64_t{1}, "1", "of torch.randn", {}},
        torch_dtype(),
        torch_device(),
        {"heads_at_once", integer, int64_t{0}, "1", "key heads that travel together; 0 lets it choose", {}},
        {"check", flag, false, "1", "whether each call compares the ranks' arguments", {}},
        {"calls", integer, int64_t{1}, "1", "one behind the other in a sample, whose time is shared out", {}},
        {"samples", integer, int64_t{40}, "1", "timed samples, fewer where a call takes long", {}},
        {"budget", number, 0.6, "s", "for the samples of a case; at least 3 are taken", {}},
    };
  }

  std::vector<report::ColumnInfo> columns() const override { return distributed_columns(); }

  void check(const Parameters& p) const override {
    for (const char* name : {"ranks", "length", "heads", "kv_heads", "head_dim", "calls", "samples"})
      require_one(p, name);
    const int64_t heads = get_integer(p, "heads"), kv_heads = get_integer(p, "kv_heads");
    if (heads % kv_heads != 0)
      throw InvalidArgument(
          fmt::format("heads is {}; it must be a multiple of kv_heads, {}", heads, kv_heads));
    const int64_t length = get_integer(p, "length"), chunks = 2 * get_integer(p, "ranks");
    if (!is_on_one_gpu(p) && length % chunks != 0)
      throw InvalidArgument(fmt::format("length is {}; a zigzag over {} ranks takes a multiple of {}", length,
                                        chunks / 2, chunks));
    if (get_integer(p, "heads_at_once") < 0)
      throw InvalidArgument(fmt::format("heads_at_once is {}; it must be at least 1, or 0, which chooses",
                                        get_integer(p, "heads_at_once")));
    if (const double alpha = get_number(p, "alpha"); !(alpha > 1 && alpha <= 2))
      throw InvalidArgument(fmt::format("alpha is {}; it must be above 1 and at most 2", alpha));
    for (const char* name : {"temperature", "budget"}) require_positive(p, name);
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = p;
    if (is_on_one_gpu(p)) kept["ranks"] = int64_t{1};
    if (!is_over_several(p)) {
      for (const char* name : {"heads_at_once", "check"}) kept.erase(name);
    }
    if (get_text(p, "implementation").starts_with("softmax")) kept.erase("alpha");
    return kept;
  }

  std::string input_hash(const Parameters& p) const override {
    return fmt::format("torch.randn, seed {}", get_integer(p, "seed"));
  }

  CaseResult evaluate(const Parameters& p) const override {
    static PeerProcess peer("torch_distributed.py", "torch and splash_attention");
    return torch_case(peer, p);
  }
};

const GpuDistributed kGpuDistributed;
const KindRegistration kGpuDistributedRegistration(kGpuDistributed);

}  // namespace
}  // namespace splash::experiments
