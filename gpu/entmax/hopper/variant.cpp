// Hopper's path as a variant, rung 0 of the ladder entmax: the ladders' tests hold it against the double
// oracle.

#include "gpu/engine/variant.h"

#include <algorithm>

#include "core/round.h"
#include "gpu/engine/trace.h"
#include "gpu/entmax/arguments/variant_arguments.h"
#include "gpu/entmax/hopper/dense/dense.h"
#include "gpu/entmax/hopper/forward.h"
#include "gpu/entmax/hopper/prepare/high_norm.h"
#include "gpu/entmax/hopper/screen/tile_schedule.h"
#include "gpu/entmax/schedule/block_place.h"

namespace splash::gpu::entmax::hopper {
namespace {

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  require_forward(spec, dtype);
  require_alphas("entmax/0-one-pass", spec);
  const bool ranges = has_ranges(spec);
  const ForwardKernel kernel = forward_kernel_of(dtype, spec.shape.head_dim, row_keys(spec));
  const DenseKernel dense = dense_kernel_of(dtype, spec.shape.head_dim, ranges);
  Plan plan;
  plan.tile = {.q = kernel.queries, .k = kernel.keys, .d = 0, .stages = kernel.stages};
  plan.kernels = {{.name = "forward_kernel",
                   .function = kernel.function,
                   .blocks = screen_blocks(kernel, spec.shape),
                   .threads = kernel.threads,
                   .shared_bytes = kernel.shared_bytes},
                  {.name = "dense_kernel",
                   .function = dense.function,
                   .blocks = dense_blocks(spec.shape.batch * spec.shape.q_heads, spec.shape.q_len, dense,
                                          std::max(1, device.multiprocessors)),
                   .threads = dense.threads,
                   .shared_bytes = dense.shared_bytes}};
  plan.workspace_bytes = variant_workspace_bytes(spec, dtype);
  plan.unit = MathUnit::f16;
  plan.tile.instruction_q = 64;
  return plan;
}

// prepare_kernel, and the forward_kernel that screens all rows: its sampling pass and its screening pass. The
// data decides which rows are deferred and how many values a row weighs; here no row is deferred, and each
// weighs one value, the least.
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const AttentionShape& s = spec.shape;
  const Tile tile = plan.tile;
  const TensorRows rows(s, dtype);
  const HopperWorkspace workspace(spec, dtype, {});
  const ForwardProblem problem = problem_of(spec, {});
  constexpr int64_t kFloat = sizeof(float);
  const int64_t heads = s.batch * s.q_heads, key_heads = s.batch * s.kv_heads, head_dim = s.head_dim,
                q_tiles = ceil_div(s.q_len, tile.q), group = s.group(), kv_len = s.kv_len, q_len = s.q_len,
                errors = ceil_div(kv_len, kErrorKeys), first_block = problem.first_block,
                prepared = errors - first_block, segment = workspace.segment,
                per_segment = workspace.high_norm_per_segment, segments = segment > 0 ? kv_len / segment : 0,
                row_bytes = rows.row_bytes(), base = alpha_bytes(spec), errors_at = base + workspace.errors,
                high_norm_at = base + workspace.high_norm_keys,
                copy_at = workspace.half_keys < 0 ? -1 : base + workspace.half_keys;
  const auto read_keys = [=](BlockTrace& trace, int64_t key_head, int64_t first, int64_t count) {
    if (copy_at < 0) return rows.read_k(trace, key_head, first, count);
    trace.read(Operand::workspace, copy_at + (key_head * kv_len + first) * row_bytes,
               std::min(count, kv_len - first) * row_bytes);
  };
  const auto prepare = [=](int64_t block, BlockTrace& trace) {
    const int64_t head = block / prepared, in_head = block % prepared + first_block,
                  first = in_head * kErrorKeys, at = head * kv_len + first,
                  keys = std::min<int64_t>(kErrorKeys, kv_len - first);
    rows.read_k(trace, head, first, kErrorKeys);
    trace.next_step();
    if (copy_at >= 0) trace.write(Operand::workspace, copy_at + at * row_bytes, keys * row_bytes);
    const int64_t share =
        segments > 0 ? high_norm_per_block(workspace.high_norm_per_segment, workspace.segment) : 0;
    if (share > 0 && first / segment < segments)
      trace.write(Operand::workspace,
                  high_norm_at + (head * segments * per_segment + first / kErrorKeys * share) * row_bytes,
                  share * row_bytes);
    trace.write(Operand::workspace, errors_at + (head * errors + in_head) * kFloat, kFloat);
  };
  const auto screen = [=, seen = SeenTiles(spec, tile.q, tile.k)](int64_t block, BlockTrace& trace) mutable {
    const BlockPlace place(static_cast<int>(block), static_cast<int>(q_tiles), static_cast<int>(heads),
                           heads_together(kv_len * head_dim, group));
    const int64_t head = place.head, key_head = head / group, first = place.tile * tile.q;
    const auto range = [&](int64_t query) { return spec.mask.row(s, 0, 0, query); };
    const int64_t whole_begin = range(std::min(first + tile.q, q_len) - 1).begin,
                  whole_end = range(first).end;
    const auto span = [](int64_t begin, int64_t end) {
      return Span{static_cast<int>(begin), static_cast<int>(end)};
    };
    const auto& tiles = seen.of(head, first);
    const TileSchedule schedule(
        tiles.empty() ? Span{0, 0} : span(tiles.front(), tiles.back() + 1), static_cast<int>(tile.k),
        segments > 0 ? span(ceil_div(whole_begin, segment), whole_end / segment) : Span{0, 0},
        static_cast<int>(segment), problem.sampled_keys);
    const int64_t first_error = schedule.first_tile * tile.k / kErrorKeys;
    rows.read_q(trace, head, first, tile.q);
    trace.read(Operand::workspace, errors_at + (key_head * errors + first_error) * kFloat,
               (ceil_div((schedule.last_tile() + 1) * tile.k, kErrorKeys) - first_error) * kFloat);
    for (int position = 0; position < schedule.length(); ++position) {
      const int tile_of_keys =
          position < schedule.screen_begin ? schedule.sampled(position) : schedule.screened(position);
      if (schedule.is_high_norm(position)) {
        trace.read(
            Operand::workspace,
            high_norm_at + (key_head * segments + schedule.segment(position)) * per_segment * row_bytes,
            per_segment * row_bytes);
      } else if (tile_of_keys >= 0) {
        read_keys(trace, key_head, tile_of_keys * tile.k, tile.k);
      }
      trace.multiply(tile.q, tile.k, round_up(head_dim, 64));  // a position without a tile multiplies, too
      trace.next_step();
    }
    if (schedule.tiles > 0) rows.read_one_value_each(trace, key_head, first, tile.q);
    trace.next_step();
    rows.write_out(trace, head, first, std::min<int64_t>(tile.q, q_len - first));
  };
  return {{.kernel = "prepare_kernel", .blocks = key_heads * prepared, .through_l1 = true, .run = prepare},
          {.kernel = "forward_kernel", .blocks = plan.kernels[0].blocks, .run = screen}};
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan&, const Arguments& args) {
  enqueue_forward(spec, dtype, forward_arguments(spec, args, ForwardPath::hopper));
}

const Variant kVariant{
    .ladder = "entmax",
    .rung = 0,
    .name = "one-pass",
    .idea =
        "one dense product in float16 screens with a certified bound; tau, probabilities and values "
        "come exactly from the few pairs above it; rows with broad supports are solved on tensor cores",
    .finding =
        "0.70 ms at 16k, 16 heads, d 64, causal, variance 6, and 1.88 ms at 64k, 4 heads, variance 25, where "
        "cuDNN's dense takes 1.22 and 4.84. A bare loop of the same products takes 0.36 ms.",
    .limits = {.dtypes = {Dtype::bf16, Dtype::f16},
               .normalizers = {NormalizerKind::entmax},
               .causal = true,
               .window = true,
               .compute_capability = 90},
    .backward = true,
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu::entmax::hopper
