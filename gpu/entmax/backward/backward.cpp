// Backward's checks, its workspace's layout, and the launches in their order.

#include "gpu/entmax/backward/backward.h"

#include <algorithm>
#include <bit>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "core/round.h"
#include "gpu/entmax/backward/problem.h"
#include "gpu/entmax/checks.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {
namespace {

using namespace backward;

void require_below_2_31(const char* name, int64_t value) {
  if (value < 0 || value >= int64_t{1} << 31)
    throw InvalidArgument(std::string(name) + ": " + std::to_string(value) + "; allowed: below 2^31");
}

BackwardProblem sizes_of(const AttentionSpec& spec, int64_t capacity, bool with_unstored_rows,
                         const Tuning& tuning) {
  validate(tuning);
  spec.shape.validate();
  spec.normalizer.validate(spec.shape);
  const AttentionShape& s = spec.shape;
  if (s.head_dim % 8 != 0 || s.head_dim > 256)
    throw InvalidArgument("head_dim " + std::to_string(s.head_dim) + "; allowed: multiples of 8 up to 256");
  require_below_2_31("entries of the support's capacity", capacity);
  require_below_2_31("queries over all heads", s.rows());
  require_below_2_31("keys over all heads", s.batch * s.kv_heads * s.kv_len);
  BackwardProblem p;
  p.batch = s.batch;
  p.q_len = static_cast<uint32_t>(s.q_len);
  p.kv_len = static_cast<uint32_t>(s.kv_len);
  p.head_dim = static_cast<uint32_t>(s.head_dim);
  p.q_heads = static_cast<uint32_t>(s.q_heads);
  p.group = static_cast<uint32_t>(s.group());
  p.alphas = static_cast<uint32_t>(spec.normalizer.alpha.size());
  p.tiles_a_head = static_cast<uint32_t>(ceil_div(s.q_len, kRowTile));
  p.row_tiles = s.batch * s.q_heads * p.tiles_a_head;
  p.by_tiles_a_head = Divisor(p.tiles_a_head);
  p.by_group = Divisor(p.group);
  p.by_kv_len = Divisor(p.kv_len);
  p.rows = static_cast<uint32_t>(s.rows());
  p.keys = static_cast<uint32_t>(s.batch * s.kv_heads * s.kv_len);
  p.scale = static_cast<float>(spec.score_scale());
  p.rows_a_key = p.group * p.q_len;
  const RowSlices slices(s);
  p.slice_bits = slices.bits;
  p.slices = slices.count;
  p.key_stride = round_up(p.keys, 4);
  const int row_bits = std::max(1, static_cast<int>(std::bit_width(p.rows_a_key - 1)));
  p.p_bits = (64 - row_bits) / 2;
  p.ds_bits = 64 - row_bits - p.p_bits;
  p.long_parts = static_cast<uint32_t>(tuning.long_parts);
  if (!with_unstored_rows) return p;
  if (s.head_dim > kMostUnstoredHeadDim) {
    throw InvalidArgument("head_dim " + std::to_string(s.head_dim) +
                          "; allowed for unstored rows: multiples of 8 up to " +
                          std::to_string(kMostUnstoredHeadDim));
  }
  p.dense.tiles = static_cast<int>(2 * ceil_div(s.q_len, 2 * kDenseTile));
  const Band band = band_of(spec);
  p.dense.reach = band.reach;
  p.dense.window = band.window;
  p.dense.kv_len = static_cast<int>(s.kv_len);
  return p;
}

// Lays the workspace's parts out one after the other, 256-byte aligned; returns the bytes. workspace may be
// null, to count bytes only.
int64_t lay_out(BackwardProblem& p, Dtype dtype, int64_t capacity, const AttentionSpec& spec,
                void* workspace) {
  int64_t bytes = 0;
  const auto take_bytes = [&](int64_t count) {
    void* const part = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(workspace) + bytes);
    bytes += round_up(count, 256);
    return part;
  };
  const auto take = [&]<class Part>(Part*& part, int64_t count) {
    part = static_cast<Part*>(take_bytes(count * static_cast<int64_t>(sizeof(Part))));
  };
  const int64_t lanes = p.head_dim <= 64 ? 8 : p.head_dim <= 128 ? 16 : 32;
  take(p.row_slots, p.row_tiles * kRowTile);
  take(p.row_alphas, p.rows);
  take(p.long_rows, capacity / kLongRow + 1);
  take(p.long_columns, capacity / kLongColumn + 1);
  take(p.column_parts, most_column_parts(capacity));
  take(p.counters, 1);
  take(p.key_blocks, ceil_div(p.keys, kKeyBlock) + 1);
  take(p.key_places, int64_t{p.slices} * p.key_stride);
  take(p.ranks, capacity);
  p.entries = take_bytes(capacity * entry_bytes(dtype));
  take(p.partials, most_partials(capacity) * 16 * lanes);
  const int64_t dense_rows = int64_t{p.rows} / p.q_len * p.dense.tiles * kDenseTile;
  uint16_t *q = nullptr, *d_out = nullptr;
  take(q, dense_rows * p.head_dim);
  take(d_out, dense_rows * p.head_dim);
  p.dense.q = q;
  p.dense.d_out = d_out;
  take(p.dense.facts, dense_rows * kFacts);
  take(p.dense.queues, p.dense.tiles > 0 ? 2 : 0);
  if (!spec.sinks.empty()) take(p.row_sinks, p.rows);
  if (spec.bias.any()) {
    take(p.score_gradients, capacity);
    take(p.largest_scores, p.q_heads);
    take(p.bias_sums, p.q_heads * spec.bias.distances);
  }
  return bytes;
}

}  // namespace

int64_t backward_workspace_bytes(const AttentionSpec& spec, Dtype dtype, int64_t capacity,
                                 bool with_unstored_rows, const Tuning& tuning) {
  BackwardProblem p = sizes_of(spec, capacity, with_unstored_rows, tuning);
  return lay_out(p, dtype, capacity, spec, nullptr);
}

void enqueue_backward(const AttentionSpec& spec, Dtype dtype, const BackwardArguments& arguments) {
  if (dtype == Dtype::f64) throw InvalidArgument("dtype float64; allowed: float32, float16, bfloat16");
  const bool with_unstored_rows = arguments.unstored.rows.queries != nullptr;
  if (with_unstored_rows && dtype == Dtype::f32)
    throw InvalidArgument("dtype float32; allowed for unstored rows: float16, bfloat16");
  if (with_unstored_rows && arguments.tau_offsets != nullptr)
    throw InvalidArgument("unstored rows and offsets of thresholds; allowed: one of them");
  const bool modifies_scores = spec.softcap > 0 || !spec.sinks.empty();
  if (with_unstored_rows && (modifies_scores || spec.dropout.drops() || spec.bias.any()))
    throw InvalidArgument("unstored rows and a soft cap, sinks, dropout or a bias; allowed: one of them");
  if (modifies_scores && arguments.tau == nullptr)
    throw InvalidArgument("there is a soft cap or a sink, but arguments.tau has no thresholds");
  require_modifications(spec, arguments.sinks, arguments.dropout_seed, arguments.bias);
  if (with_unstored_rows) require_mask(spec, arguments.mask);
  BackwardProblem p = sizes_of(spec, arguments.support.capacity, with_unstored_rows, arguments.tuning);
  if (modifies_scores) p.tau = arguments.tau;
  p.softcap = static_cast<float>(spec.softcap);
  p.dropout = device_dropout(spec.dropout, arguments.dropout_seed);
  if (!spec.sinks.empty()) p.sinks = arguments.sinks;
  p.bias = device_bias(spec, arguments.bias);
  p.dense.from = arguments.unstored;
  p.dense.mask = arguments.mask;
  p.q = arguments.q;
  p.k = arguments.k;
  p.v = arguments.v;
  p.d_out = arguments.d_out;
  p.support = arguments.support;
  p.alpha = arguments.alpha;
  p.tau_offsets = arguments.tau_offsets;
  p.d_q = arguments.d_q;
  p.d_k = arguments.d_k;
  p.d_v = arguments.d_v;
  p.d_alpha = arguments.d_alpha;
  if (!spec.sinks.empty()) p.d_sinks = arguments.d_sinks;
  if (spec.bias.any()) p.d_bias = arguments.d_bias;
  lay_out(p, dtype, arguments.support.capacity, spec, arguments.workspace);
  place_entries(p, arguments.stream);
  compute_rows(p, dtype, arguments.stream);
  if (with_unstored_rows) compute_dense_rows(p, dtype, arguments.stream);
  if (arguments.d_q_done != nullptr) arguments.d_q_done->record(arguments.stream);
  compute_columns(p, dtype, arguments.stream);
  if (with_unstored_rows) compute_dense_columns(p, dtype, arguments.stream);
  if (p.d_alpha != nullptr) sum_heads(p, p.row_alphas, p.d_alpha, arguments.stream);
  if (p.d_sinks != nullptr) sum_heads(p, p.row_sinks, p.d_sinks, arguments.stream);
  if (p.d_bias != nullptr) sum_bias(p, arguments.stream);
}

}  // namespace splash::gpu::entmax
