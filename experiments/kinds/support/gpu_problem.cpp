#include "experiments/kinds/support/gpu_problem.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/cu_seqlens.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/random.h"
#include "core/round.h"
#include "core/workload.h"
#include "cpu_ref/attention/backward.h"
#include "experiments/kinds/support/file_inputs.h"
#include "experiments/kinds/support/gpu_file_problem.h"
#include "experiments/kinds/support/inputs.h"
#include "experiments/kinds/support/lru_cache.h"
#include "experiments/runner/value.h"
#include "report/hdf5/file.h"

namespace splash::experiments {
namespace {

constexpr uint64_t kGradientStream = 0xd0;  // stream of the seed; make_inputs draws from others
constexpr const char* kGaussian = "gaussian";

AttentionShape shape_of(const Parameters& p) {
  return {get_integer(p, "batch"), get_integer(p, "q_heads"), get_integer(p, "kv_heads"),
          get_integer(p, "q_len"), get_integer(p, "kv_len"),  get_integer(p, "head_dim")};
}

// Whether the input is a captured text or a file.
bool of_capture(const Parameters& p) {
  return get_text(p, "input") != kGaussian;
}

bool is_mask(const Parameters& p, const std::string& name) {
  return get_text(p, "mask") == name;
}

Tensor<float> captured_layers(const Parameters& p, const std::string& name) {
  const auto array = report::hdf5::read_floats(captures_path(), get_text(p, "input") + "/" + name, {}, 4);
  Tensor<float> tensor(array.extents.at(0), array.extents.at(1), array.extents.at(2), array.extents.at(3));
  std::ranges::copy(array.values, tensor.data());
  return tensor;
}

Workload workload_of(const Parameters& p) {
  return {.seed = static_cast<uint64_t>(get_integer(p, "seed")),
          .query_variance = get_number(p, "query_variance")};
}

Mask mask_of(const Parameters& p) {
  Mask mask;
  const AttentionShape shape = shape_of(p);
  mask.causal = is_mask(p, "causal") || is_mask(p, "window") || is_mask(p, "documents");
  if (is_mask(p, "window")) mask.window = get_integer(p, "window");
  if (is_mask(p, "documents"))
    mask.cu_seqlens_q = mask.cu_seqlens_k = cu_seqlens_from_string(get_text(p, "documents"), shape.q_len);
  if (!is_mask(p, "positions")) return mask;
  // Positions 0, 1, 2, ...: the causal mask, written as positions.
  for (int64_t i = 0; i < shape.q_len; ++i) mask.q_positions.push_back(i);
  for (int64_t i = 0; i < shape.kv_len; ++i) mask.k_positions.push_back(i);
  return mask;
}

Tensor<double> part(const Tensor<double>& tensor, int64_t rows) {
  Tensor<double> result(1, tensor.heads(), rows, tensor.dim());
  for (int64_t h = 0; h < tensor.heads(); ++h)
    result.matrix(0, h) = tensor.matrix(tensor.batch() - 1, h).bottomRows(rows);
  return result;
}

int64_t checked_row_count(int64_t q_len, const Selection& selection, int64_t at_most) {
  if (selection.kind != SelectionKind::shared_keys || at_most >= q_len) return std::min(q_len, at_most);
  // Tiles count from the first query. Only whole tiles are kept, and the last tile is whole only if the
  // length is a multiple of the tile.
  return q_len % selection.block == 0 ? std::max(selection.block, at_most / selection.block * selection.block)
                                      : q_len;
}

// Keeps the entries of the last `rows` queries of the last batch entry.
void keep_last(std::vector<int64_t>& positions, int64_t rows) {
  if (!positions.empty()) positions.erase(positions.begin(), positions.end() - rows);
}

// Keeps the last `rows` queries of packed sequences. Those before keep their keys, without a query.
void keep_last_packed(std::vector<int64_t>& cu_seqlens, int64_t rows) {
  const int64_t dropped = cu_seqlens.empty() ? 0 : cu_seqlens.back() - rows;
  for (int64_t& first : cu_seqlens) first = std::max<int64_t>(0, first - dropped);
}

std::vector<int32_t> last_lists(const AttentionSpec& spec, int64_t rows) {
  const Selection& selection = spec.selection;
  const int64_t tiles = selection.tiles(spec.shape), kept = ceil_div(rows, selection.block);
  std::vector<int32_t> keys;
  for (int64_t head = 0; head < spec.shape.kv_heads; ++head) {
    const int64_t list = ((spec.shape.batch - 1) * spec.shape.kv_heads + head) * tiles + tiles - kept;
    const auto first = selection.keys.begin() + list * selection.k_keep;
    keys.insert(keys.end(), first, first + kept * selection.k_keep);
  }
  return keys;
}

}  // namespace

std::vector<ParameterInfo> problem_parameters() {
  using enum ParameterType;
  return {
      {"batch", integer, int64_t{1}, "1", "batch entries", {}},
      {"q_heads", integer, int64_t{8}, "1", "query heads", {}},
      {"kv_heads", integer, int64_t{8}, "1", "key heads", {}},
      {"q_len", integer, int64_t{512}, "1", "queries", {}},
      {"kv_len", integer, int64_t{512}, "1", "keys", {}},
      {"head_dim", integer, int64_t{64}, "1", "head dimension", {}},
      {"dtype", text, std::string("bfloat16"), "", "element type", {"float32", "float16", "bfloat16"}},
      {"mask",
       text,
       std::string("none"),
       "",
       "which keys are hidden",
       {"none", "causal", "window", "positions", "documents"}},
      {"window", integer, int64_t{1024}, "1", "last keys that a causal query sees, of the mask window", {}},
      {"documents",
       text,
       std::string("2x256"),
       "",
       "lengths of packed documents, causal inside each, of the mask documents: 8x2048, or 4096+2x512",
       {}},
      {"normalizer",
       text,
       std::string("softmax"),
       "",
       "what makes scores probabilities",
       {"softmax", "entmax", "power", "power_unnormalized"}},
      {"alpha", number, 1.5, "1", "alpha of entmax and power", {}},
      {"selection",
       text,
       std::string("all"),
       "",
       "which keys take part",
       {"all", "top_k_row", "top_k_block", "shared_keys"}},
      {"k_keep", integer, int64_t{8}, "1", "keys kept, of top_k_row and top_k_block", {}},
      {"block", integer, int64_t{64}, "1", "keys a block of top_k_block, queries a tile of shared_keys", {}},
      {"share", number, 0.1, "1", "keys listed of those visible, of shared_keys", {}},
      {"query_variance", number, 6.0, "1", "variance of the Gaussian queries", {}},
      {"seed", integer, int64_t{1}, "1", "seed of the inputs", {}},
  };
}

bool is_of_one_mask(const std::string& parameter) {
  return parameter == "window" || parameter == "documents";
}

std::vector<ParameterInfo> problem_input_parameters() {
  using enum ParameterType;
  return {
      {"input",
       text,
       std::string(kGaussian),
       "",
       "Gaussian q, k and v, every layer (batch) and head of MiniLM on a text, a decoder (smollm2; after "
       "conversion smollm2-converted), or a file",
       {kGaussian, "gpl-3", "gfdl-1.3", "smollm2", "smollm2-converted"},
       tensor_file_endings()},
      {"call", integer, int64_t{0}, "1", "call of a file, from 0; -1: all, a batch entry each", {}},
      {"layer", integer, kAllLayers, "1", "layer of a file; -1: all, a batch entry each", {}},
      {"scale",
       number,
       0.0,
       "1",
       "scores are scale <q, k>, of a file: its own unless set; 0, and elsewhere: 1/sqrt(head_dim)",
       {}},
      {kAlphaOfFile,
       flag,
       false,
       "",
       "whether alpha of each query head, and a factor that multiplies its queries, are those of the "
       "method that a file of one layer holds; its k_keep is not: selection says which keys take part",
       {}},
  };
}

void check_problem(const Parameters& p) {
  AttentionSpec spec;
  spec.shape = shape_of(p);
  spec.shape.validate();
  spec.normalizer = {normalizer_from_string(get_text(p, "normalizer")), {get_number(p, "alpha")}};
  spec.normalizer.validate(spec.shape);
  Selection{.k_keep = get_integer(p, "k_keep"), .block = get_integer(p, "block")}.validate(spec.shape);
  workload_of(p).validate();
  if (const double share = get_number(p, "share"); !(share > 0 && share <= 1))
    throw InvalidArgument(fmt::format("share is {}; it must lie in (0, 1]", share));
  if (is_mask(p, "window") && get_integer(p, "window") < 1)
    throw InvalidArgument(fmt::format("window is {}; it must be at least 1", get_integer(p, "window")));
  if ((is_mask(p, "positions") || is_mask(p, "documents")) && spec.shape.q_len != spec.shape.kv_len) {
    throw InvalidArgument(fmt::format("the mask {} needs as many queries as keys, not {} and {}",
                                      get_text(p, "mask"), spec.shape.q_len, spec.shape.kv_len));
  }
  if (is_mask(p, "documents")) cu_seqlens_from_string(get_text(p, "documents"), spec.shape.q_len);
}

void check_input(const Parameters& p) {
  if (is_of_file(p)) return check_file_problem(p, shape_of(p));
  refuse_scale_of_no_file(p);
  if (get_flag(p, kAlphaOfFile))
    throw InvalidArgument(
        fmt::format("{} takes a file as input, not {}", kAlphaOfFile, get_text(p, "input")));
  if (!of_capture(p)) return;
  const std::string& text = get_text(p, "input");
  const auto extents = report::hdf5::read_extents(captures_path(), text + "/q", 4);
  const AttentionShape captured{.batch = extents.at(0),
                                .q_heads = extents.at(1),
                                .kv_heads = extents.at(1),
                                .q_len = extents.at(2),
                                .kv_len = extents.at(2),
                                .head_dim = extents.at(3)};
  if (to_string(captured) == to_string(shape_of(p))) return;
  throw InvalidArgument(fmt::format("the capture of {} is {}; the case asks for {}", text,
                                    to_string(captured), to_string(shape_of(p))));
}

void keep_used_problem(Parameters& p, bool seeded) {
  const SelectionKind selection = selection_from_string(get_text(p, "selection"));
  const bool in_blocks = selection == SelectionKind::top_k_block,
             shared = selection == SelectionKind::shared_keys;
  if (get_text(p, "normalizer") == "softmax") p.erase("alpha");
  for (const ParameterInfo& info : problem_parameters())
    if (is_of_one_mask(info.name) && !is_mask(p, info.name)) p.erase(info.name);
  if (!in_blocks && selection != SelectionKind::top_k_row) p.erase("k_keep");
  if (!in_blocks && !shared) p.erase("block");
  if (!shared) p.erase("share");
  p.erase(get_flag(p, kAlphaOfFile) ? "alpha" : kAlphaOfFile);
  if (is_of_file(p)) {
    p["scale"] = scale_of(p);
  } else {
    for (const char* name : {"call", "layer", "scale"}) p.erase(name);
  }
  if (!of_capture(p)) return;
  p.erase("query_variance");
  if (!shared && !seeded) p.erase("seed");
}

std::string problem_key(const Parameters& p) {
  std::string key = is_of_file(p) ? file_problem_key(p) : get_text(p, "input");
  if (of_capture(p) && !is_of_file(p)) key += " " + captures_hash();
  const char* separator = ": ";
  for (const ParameterInfo& info : problem_parameters()) {
    if (is_of_one_mask(info.name) && !is_mask(p, info.name)) continue;
    if (info.name == "alpha" && get_flag(p, kAlphaOfFile)) continue;
    key += fmt::format("{}{} {}", separator, info.name, to_text(p.at(info.name)));
    separator = ", ";
  }
  return key;
}

AttentionSpec problem_spec(const Parameters& p) {
  AttentionSpec spec;
  spec.shape = shape_of(p);
  spec.normalizer = {normalizer_from_string(get_text(p, "normalizer")), {get_number(p, "alpha")}};
  if (p.contains("input") && is_of_file(p)) {  // parameters of recorded kernels may have no input
    spec.scale = scale_of(p);
    if (get_flag(p, kAlphaOfFile)) spec.normalizer.alpha = file_heads(p).alpha;
  }
  spec.mask = mask_of(p);
  spec.selection = {.kind = selection_from_string(get_text(p, "selection")),
                    .k_keep = get_integer(p, "k_keep"),
                    .block = get_integer(p, "block")};
  if (spec.selection.kind == SelectionKind::shared_keys)
    spec.selection = make_shared_keys(spec.shape, spec.mask, spec.selection.block, get_number(p, "share"),
                                      workload_of(p).seed);
  return spec;
}

Dtype problem_dtype(const Parameters& p) {
  return dtype_from_string(get_text(p, "dtype"));
}

std::shared_ptr<const AttentionInputs<float>> problem_inputs(const Parameters& p) {
  static LruCache<AttentionInputs<float>> cache(int64_t{2} << 30);
  const AttentionShape shape = shape_of(p);
  const std::string input = is_of_file(p) ? file_problem_key(p) : get_text(p, "input");
  const std::string key = fmt::format("{} {} variance {} seed {}", input, to_string(shape),
                                      get_number(p, "query_variance"), get_integer(p, "seed"));
  const auto make = [&]() -> AttentionInputs<float> {
    if (is_of_file(p)) return load_file_problem(p);
    if (!of_capture(p)) return make_inputs<float>(workload_of(p), shape);
    return {captured_layers(p, "q"), captured_layers(p, "k"), captured_layers(p, "v")};
  };
  return cache.get(key, make, [](const AttentionInputs<float>& x) {
    return static_cast<int64_t>(sizeof(float)) * (x.q.size() + x.k.size() + x.v.size());
  });
}

std::shared_ptr<const Tensor<float>> problem_d_out(const Parameters& p) {
  static LruCache<Tensor<float>> cache(int64_t{1} << 30);
  const AttentionShape shape = shape_of(p);
  const auto make = [&] {
    Tensor<float> d_out(shape.batch, shape.q_heads, shape.q_len, shape.head_dim);
    const CounterRandom random = CounterRandom(workload_of(p).seed).stream(kGradientStream);
    parallel_for(d_out.size(), kElementsAtOnce,
                 [&](int64_t i) { d_out.data()[i] = static_cast<float>(random.normal(i)); });
    return d_out;
  };
  return cache.get(fmt::format("{} seed {}", to_string(shape), get_integer(p, "seed")), make,
                   [](const Tensor<float>& x) { return static_cast<int64_t>(sizeof(float)) * x.size(); });
}

int64_t checked_row_count(const Parameters& p, int64_t at_most) {
  const Selection selection{.kind = selection_from_string(get_text(p, "selection")),
                            .block = get_integer(p, "block")};
  return checked_row_count(get_integer(p, "q_len"), selection, at_most);
}

CheckedRows checked_rows(const AttentionSpec& spec, int64_t at_most) {
  CheckedRows checked{spec, checked_row_count(spec.shape.q_len, spec.selection, at_most)};
  AttentionSpec& part_spec = checked.spec;
  part_spec.shape.batch = 1;
  part_spec.shape.q_len = checked.rows;
  keep_last(part_spec.mask.q_positions, checked.rows);
  keep_last_packed(part_spec.mask.cu_seqlens_q, checked.rows);
  if (spec.selection.kind == SelectionKind::shared_keys) {
    part_spec.selection.keys = checked.rows == spec.shape.q_len && spec.shape.batch == 1
                                   ? spec.selection.keys
                                   : last_lists(spec, checked.rows);
  }
  return checked;
}

Tensor<double> CheckedRows::of(const Tensor<double>& tensor) const {
  return part(tensor, rows);
}
Tensor<double> CheckedRows::last_batch(const Tensor<double>& tensor) const {
  return part(tensor, tensor.length());
}

cpu_ref::ForwardResult<double> oracle(const CheckedRows& checked, const Tensor<double>& q,
                                      const Tensor<double>& k, const Tensor<double>& v) {
  return cpu_ref::attention_forward<double>(checked.spec, checked.of(q), checked.last_batch(k),
                                            checked.last_batch(v), {.solver = cpu_ref::Solver::newton});
}

Tensor<double> oracle_d_q(const CheckedRows& checked, const Tensor<double>& q, const Tensor<double>& k,
                          const Tensor<double>& v, const Tensor<double>& d_out) {
  return cpu_ref::attention_backward<double>(checked.spec, checked.of(q), checked.last_batch(k),
                                             checked.last_batch(v), checked.of(d_out),
                                             {.solver = cpu_ref::Solver::newton})
      .dq;
}

}  // namespace splash::experiments
