// The portable path as a variant: so the ladders' tests compare it with the double oracle, and it can be
// timed beside Hopper's path.

#include "gpu/engine/variant.h"

#include <algorithm>

#include "gpu/engine/trace.h"
#include "gpu/entmax/arguments/variant_arguments.h"
#include "gpu/entmax/portable/problem.h"

namespace splash::gpu::entmax::portable {
namespace {

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& /*device*/) {
  require_forward(spec, dtype);
  require_alphas("entmax/1-portable", spec);
  const Kernel screen = screen_kernel_of(dtype, spec.shape.head_dim);
  const Kernel stream = stream_kernel_of(dtype, spec.shape.head_dim);
  const auto launch_of = [&](const char* name, const Kernel& kernel) {
    return KernelLaunch{.name = name,
                        .function = kernel.function,
                        .blocks = blocks_of(kernel, spec.shape),
                        .threads = kernel.threads,
                        .shared_bytes = kernel.shared_bytes};
  };
  Plan plan;
  plan.tile = {.q = screen.queries, .k = kTileKeys, .d = 0, .stages = 2};
  plan.kernels = {launch_of("screen_kernel", screen), launch_of("stream_kernel", stream)};
  plan.workspace_bytes = variant_workspace_bytes(spec, dtype);
  plan.unit = dtype == Dtype::f32 ? MathUnit::fp32 : MathUnit::f16;
  return plan;
}

// The tiles of keys from the first to the last that some row's mask leaves visible, positions ignored.
struct OpenTiles {
  int64_t first = 0, end = 0;

  OpenTiles(const AttentionSpec& spec, int64_t head, int64_t query, int64_t count) {
    const AttentionShape& s = spec.shape;
    int64_t begin_key = s.kv_len, end_key = 0;
    for (int64_t i = query; i < std::min(query + count, s.q_len); ++i) {
      const RowMask row = spec.mask.row(s, head / s.q_heads, head % s.q_heads, i);
      if (row.begin >= row.end) continue;
      begin_key = std::min(begin_key, row.begin);
      end_key = std::max(end_key, row.end);
    }
    if (begin_key >= end_key) return;
    first = begin_key / kTileKeys;
    end = ceil_div(end_key, kTileKeys);
  }
};

// Traces screen_kernel alone: the data decides what it leaves to stream_kernel. Each row reads one value, the
// fewest that it can.
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  constexpr int64_t kRowsOfWarp = 16;
  const AttentionShape& s = spec.shape;
  const int64_t queries = plan.tile.q, heads = s.batch * s.q_heads, q_tiles = ceil_div(s.q_len, queries),
                depth = dtype == Dtype::f32 ? s.head_dim : round_up(s.head_dim, 16);
  const TensorRows rows(s, dtype);
  const auto screen = [=, &spec](int64_t block, BlockTrace& trace) {
    const int64_t head = block % heads, key_head = head / spec.shape.group(),
                  first = (q_tiles - 1 - block / heads) * queries;
    rows.read_q(trace, head, first, queries);
    trace.next_step();
    const OpenTiles block_tiles(spec, head, first, queries);
    for (int64_t tile = block_tiles.end; tile-- > block_tiles.first;) {
      rows.read_k(trace, key_head, tile * kTileKeys, kTileKeys);
      trace.next_step();
    }
    for (int64_t query = first; query < first + queries; query += kRowsOfWarp) {
      const OpenTiles warp_tiles(spec, head, query, kRowsOfWarp);
      trace.multiply(kRowsOfWarp, (warp_tiles.end - warp_tiles.first) * kTileKeys, depth);
    }
    if (block_tiles.end > block_tiles.first) rows.read_one_value_each(trace, key_head, first, queries);
    trace.next_step();
    rows.write_out(trace, head, first, queries);
  };
  return {{.kernel = "screen_kernel", .blocks = plan.kernels[0].blocks, .run = screen}};
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& /*plan*/, const Arguments& args) {
  enqueue_forward(spec, dtype, forward_arguments(spec, args, ForwardPath::portable));
}

const Variant kVariant{
    .ladder = "entmax",
    .rung = 1,
    .name = "portable",
    .idea =
        "mma.sync and cp.async on sm_80 and newer: lists above a certified bound for every dtype, mask and "
        "K_KEEP; rows that outgrow theirs take tau by passes that hold no score",
    .finding =
        "3.52 ms at 16k, 16 heads, d 64, causal, variance 6, bf16, on an H200, where Hopper's path takes "
        "0.70; 2.06 at 4k, 4 x 16 heads, T 1, where it takes 0.54. It is there for other GPUs, and for what "
        "the path for Hopper does not take.",
    .limits = {.dtypes = {Dtype::bf16, Dtype::f16, Dtype::f32},
               .normalizers = {NormalizerKind::entmax},
               .selections = {SelectionKind::all, SelectionKind::top_k_row},
               .causal = true,
               .window = true,
               .positions = true,
               .compute_capability = 80},
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu::entmax::portable
