#pragma once
// The kernel of rungs 4, 10 and 11: two buffers of keys and values, of which cp.async fills one while the
// warps work on the other. What differs is the work on a tile:
//
//   struct Work {
//     static constexpr int kTiles = 1;  // unroll factor of the loop over tiles
//     __device__ static void keys(float (&s)[kKeys / 8][4], const Element* q, const Element* k);
//                                   // s = Q K^T
//     __device__ static void values(float (&o)[kDim / 8][4], float (&s)[kKeys / 8][4], RowState (&state)[2],
//                                   float scale, const Element* v);  // softmax, O += P V
//   };

#include "gpu/arch/cp_async.cuh"
#include "gpu/ladders/kascade/sequential.cuh"

namespace splash::gpu::kascade {

struct Prefetch {
  static constexpr int kRows = 128, kKeys = 64, kStages = 2;
};

struct AsyncCopy {
  template <class Element>
  __device__ void operator()(Element* to, const Element* from, bool valid) const {
    arch::cp_async_16(to, from, valid);
  }
};

template <class Element>
struct PrefetchShared {
  alignas(16) Element queries[Prefetch::kRows * kPitch];
  KeyTile<Element, Prefetch::kKeys> tiles[Prefetch::kStages];
};

// The work of rung 4; rungs 10 and 11 use those of its products that they do not replace.
struct PlainWork {
  static constexpr int kTiles = 1, kKeys = Prefetch::kKeys;

  template <class Element>
  __device__ static void keys(float (&s)[kKeys / 8][4], const Element* q, const Element* k) {
    multiply_keys<kKeys>(s, q, k);
  }
  template <class Element>
  __device__ static void values(float (&o)[kDim / 8][4], float (&s)[kKeys / 8][4], RowState (&state)[2],
                                float scale, const Element* v) {
    online_softmax<kKeys>(s, o, state, scale);
    multiply_values<kKeys>(o, s, v);
  }
};

template <class Element, class Work>
__global__ void __launch_bounds__(2 * Prefetch::kRows, 2) attend_prefetching(const Problem p) {
  constexpr int kRows = Prefetch::kRows, kKeys = Prefetch::kKeys;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<PrefetchShared<Element>*>(shared_memory);
  const TileAddress at = p.address(blockIdx.x);
  const int visible = p.visible_keys(at), first = threadIdx.x / 32 * 16, row = first + threadIdx.x % 32 / 4;
  load_queries(shared.queries, p, at, kRows, AsyncCopy{});
  shared.tiles[0].load(p, at, 0, visible, AsyncCopy{});
  float s[kKeys / 8][4], o[kDim / 8][4] = {};
  RowState state[2];
  const auto work_on = [&](int begin, int stage) {
    arch::cp_async_commit();
    arch::cp_async_wait<0>();
    __syncthreads();  // this tile is there, and no warp reads the other any more
    if (begin + kKeys < visible) shared.tiles[stage ^ 1].load(p, at, begin + kKeys, visible, AsyncCopy{});
    const auto& tile = shared.tiles[stage];
    Work::keys(s, shared.queries + first * kPitch, tile.k);
    mask_scores<kKeys>(s, p, at, row, tile.keys, begin, visible);
    Work::values(o, s, state, p.scale, tile.v);
  };
  if constexpr (Work::kTiles == 1) {
    for (int begin = 0, stage = 0; begin < visible; begin += kKeys, stage ^= 1) work_on(begin, stage);
  } else {
#pragma unroll Work::kTiles
    for (int begin = 0, stage = 0; begin < visible; begin += kKeys, stage ^= 1) work_on(begin, stage);
  }
  const float sums[2] = {quad_sum(state[0].sum), quad_sum(state[1].sum)};
  store_rows<Element>(p, at, row, o, sums);
}

template <class Work>
Plan plan_prefetching(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  return with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    return plan_items(spec, {.q = Prefetch::kRows, .k = Prefetch::kKeys, .stages = Prefetch::kStages},
                      "attend_prefetching", reinterpret_cast<const void*>(&attend_prefetching<Element, Work>),
                      sizeof(PrefetchShared<Element>));
  });
}

template <class Work>
void launch_prefetching(const AttentionSpec& spec, Dtype dtype, const Plan& plan,
                        const Arguments& arguments) {
  const KernelLaunch& kernel = plan.kernels.front();
  with_element(dtype, [&](auto element) {
    attend_prefetching<decltype(element), Work>
        <<<static_cast<unsigned>(kernel.blocks), kernel.threads, kernel.shared_bytes, arguments.stream>>>(
            Problem::of(spec, Prefetch::kRows, arguments));
  });
  check_launch(kernel.name.c_str());
}

inline std::vector<KernelTrace> trace_prefetching(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_items(spec, dtype, plan.kernels[0], Prefetch::kRows,
                     {.tile_keys = Prefetch::kKeys, .padded_dim = kDim});
}

}  // namespace splash::gpu::kascade
