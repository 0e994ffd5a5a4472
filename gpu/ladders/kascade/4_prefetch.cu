// Prefetch (source 001, section 1: 30 to 50 %, S1.1): while the warps work on one tile, cp.async fills the
// other of two buffers with the next, past the registers. 64 keys a tile, two blocks an SM.
//
// Predicted: rung 3 already hides one block's loads behind the other's work; what is left is the barrier's
// wait and the loads' trip through the registers (16 a thread and tile): 1.2 times.

#include "gpu/arch/cp_async.cuh"
#include "gpu/ladders/kascade/sequential.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

constexpr int kRows = 128, kKeys = 64, kStages = 2;

struct AsyncCopy {
  template <class Element>
  __device__ void operator()(Element* to, const Element* from, bool valid) const {
    arch::cp_async_16(to, from, valid);
  }
};

template <class Element>
struct PrefetchShared {
  alignas(16) Element queries[kRows * kPitch];
  KeyTile<Element, kKeys> tiles[kStages];
};

template <class Element>
__global__ void __launch_bounds__(2 * kRows, 2) attend_prefetching(const Problem p) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<PrefetchShared<Element>*>(shared_memory);
  const TileAddress at = p.address(blockIdx.x);
  const int visible = p.visible_keys(at), first = threadIdx.x / 32 * 16, row = first + threadIdx.x % 32 / 4;
  load_queries(shared.queries, p, at, kRows, AsyncCopy{});
  shared.tiles[0].load(p, at, 0, visible, AsyncCopy{});
  float s[kKeys / 8][4], o[kDim / 8][4] = {};
  RowState state[2];
  for (int begin = 0, stage = 0; begin < visible; begin += kKeys, stage ^= 1) {
    arch::cp_async_commit();
    arch::cp_async_wait<0>();
    __syncthreads();  // this tile is there, and no warp reads the other any more
    if (begin + kKeys < visible) shared.tiles[stage ^ 1].load(p, at, begin + kKeys, visible, AsyncCopy{});
    const auto& tile = shared.tiles[stage];
    multiply_keys<kKeys>(s, shared.queries + first * kPitch, tile.k);
    mask_scores<kKeys>(s, p, at, row, tile.keys, begin, visible);
    online_softmax<kKeys>(s, o, state, p.scale);
    multiply_values<kKeys>(o, s, tile.v);
  }
  const float sums[2] = {quad_sum(state[0].sum), quad_sum(state[1].sum)};
  store_rows<Element>(p, at, row, o, sums);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  return with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    return plan_items(spec, {.q = kRows, .k = kKeys, .stages = kStages}, "attend_prefetching",
                      reinterpret_cast<const void*>(&attend_prefetching<Element>),
                      sizeof(PrefetchShared<Element>));
  });
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& arguments) {
  const KernelLaunch& kernel = plan.kernels.front();
  with_element(dtype, [&](auto element) {
    attend_prefetching<decltype(element)>
        <<<static_cast<unsigned>(kernel.blocks), kernel.threads, kernel.shared_bytes, arguments.stream>>>(
            Problem::of(spec, kRows, arguments));
  });
  check_launch(kernel.name.c_str());
}

std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_items(spec, dtype, plan.kernels[0], kRows, {.tile_keys = kKeys, .padded_dim = kDim});
}

const Variant kVariant{
    .ladder = "kascade",
    .rung = 4,
    .name = "prefetch",
    .idea = "cp.async gathers the next tile into a second buffer meanwhile",
    .finding =
        "4.2 ms at 32k: 1.32 times (1.33 at 8k), the low end of what was promised; 211 TFLOP/s executed.",
    .predicted = {.over = "3-tile-128x64", .low = 1.30, .high = 1.50, .claim = "S1.1"},
    .limits = {.dtypes = {Dtype::f16, Dtype::bf16},
               .head_dim_max = kDim,
               .selections = {SelectionKind::shared_keys},
               .selection_blocks = {kTokens},
               .causal = true,
               .compute_capability = 80},
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
