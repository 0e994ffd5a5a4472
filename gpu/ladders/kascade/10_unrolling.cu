// Loop unrolling by pragma (source 001, phase 4). All other rungs have #pragma unroll on every loop over
// head_dim, keys and columns of O. This rung is rung 4 with fewer unrolled loops (unroll-1, unroll-depth-1)
// or with one more (unroll-tiles-2).
//
// What the compiler made of it: ptxas 13.0, sm_80 / sm_90a, at the 128 registers that allow two blocks per
// SM. Rung 4 has 2113 / 2165 instructions, 128 of them HMMA, and 24 / 0 accesses to local memory.
// - unroll-1: 1991 / 2078 instructions, 4 of them HMMA, 178 / 178 accesses to local memory and a stack of 384
//   bytes. Scores and O are indexed at run time, so they cannot be registers. Loads and softmax are most of
//   the code.
// - unroll-depth-1: 2043 / 2134 instructions, 72 HMMA, 24 / 18 accesses to local memory.
// - unroll-tiles-2: 4006 / 4050 instructions, 384 HMMA, 22 / 46 accesses to local memory. The body appears
//   three times, once for an odd tile.
//
// Predicted: unroll-1 moves the sums of every product through L1. A warp and tile have 128 HMMA, each with
// four floats per lane, out and back: 8 warps x 128 x 32 lanes x 32 bytes = 1 MB. At 64 bytes per cycle that
// is 16,000 cycles for a 128 x 64 tile that takes rung 4 4,300: 4 times slower, or worse. unroll-depth-1
// waits for ldmatrix in each step of 16 dimensions, some 30 cycles x 7 per tile, beside another block's work:
// 0.97 to 1. unroll-tiles-2 saves one branch per tile: 1.0.

#include "gpu/ladders/kascade/prefetch.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

template <class Loops, int kTilesAtOnce>
struct UnrolledWork {
  static constexpr int kTiles = kTilesAtOnce, kKeys = Prefetch::kKeys;

  template <class Element>
  __device__ static void keys(float (&s)[kKeys / 8][4], const Element* q, const Element* k) {
    multiply_keys<kKeys, Loops>(s, q, k);
  }
  template <class Element>
  __device__ static void values(float (&o)[kDim / 8][4], float (&s)[kKeys / 8][4], RowState (&state)[2],
                                float scale, const Element* v) {
    online_softmax<kKeys>(s, o, state, scale);
    multiply_values<kKeys, Loops>(o, s, v);
  }
};

template <class Work>
Variant variant_of(const char* name, const char* idea, const char* finding) {
  return {.ladder = "kascade",
          .rung = 10,
          .name = name,
          .idea = idea,
          .finding = finding,
          .predicted = {.over = "4-prefetch"},
          .limits = limits_of({.compute_capability = 80}),
          .plan = plan_prefetching<Work>,
          .launch = launch_prefetching<Work>,
          .trace = trace_prefetching};
}

const Variant kRolled = variant_of<UnrolledWork<Unroll<1, 1, 1>, 1>>(
                  "unroll-1", "rung 4 with every loop of its products rolled: #pragma unroll 1",
                  "40 ms at 32k where rung 4 takes 4.2 (an H100): sums live in local memory."),
              kDepthRolled = variant_of<UnrolledWork<Unroll<1, 64, 64>, 1>>(
                  "unroll-depth-1", "rung 4 with the loop over head_dim rolled, the one that registers allow",
                  "4.32 ms at 32k where rung 4 takes 4.22 (an H100): 2 % slower."),
              kTwoTiles = variant_of<UnrolledWork<FullUnroll, 2>>(
                  "unroll-tiles-2", "rung 4 with the loop over tiles written out twice",
                  "4.21 ms at 32k where rung 4 takes 4.22 (an H100): no gain.");
const VariantRegistration kRegistrations[] = {VariantRegistration(kRolled), VariantRegistration(kDepthRolled),
                                              VariantRegistration(kTwoTiles)};

}  // namespace
}  // namespace splash::gpu
