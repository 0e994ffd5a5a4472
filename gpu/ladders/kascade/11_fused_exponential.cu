// Exponential and product fused (source 001, phase 4). Once the row's maximum is known, the exponentials of
// the next 16 keys are computed amid the products of the current 16. Rung 4 computes all 64 exponentials
// before the first product; the rest is rung 4.
//
// What the compiler made of it (ptxas 13.0): P V has 64 HMMA. On sm_80, 48 of them lie between the first and
// the last EX2 with or without this rung: the scheduler had fused them already. On sm_90a rung 4 has 9 there
// and this rung 48, at the price of registers: at the 128 that allow two blocks per SM it spills 112 bytes
// per thread, and rung 4 spills none.
//
// Predicted: on Hopper the 8192 exponentials of a 128 x 64 tile take 512 cycles of the special function
// units, out of the 4,300 of rung 4. The SM's other block already hides much of them, and the spills cost
// something: 1.0 to 1.05. On sm_80 1.0.

#include "gpu/ladders/kascade/prefetch.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

struct FusedWork : PlainWork {
  template <class Element>
  __device__ static void values(float (&o)[kDim / 8][4], float (&s)[kKeys / 8][4], RowState (&state)[2],
                                float scale, const Element* v) {
    float shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = state[half].raise(largest_of_row<kKeys>(s, half), scale, shift[half]);
      state[half].sum *= factor;
      scale_row(o, half, factor);
    }
    const int lane = threadIdx.x % 32;
    const Element* const rows = v + lane % 16 * kPitch + lane / 16 * 8;
    uint32_t a[2][4];  // the current 16 keys and the next 16
    const auto exponentiate = [&](int j) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float& score = s[j + e / 4][e % 4];
        score = arch::exp2_approx(fmaf(score, scale, -shift[e % 4 / 2]));
        state[e % 4 / 2].sum += score;
      }
      pack_probabilities<Element>(a[j / 2 % 2], s, j);
    };
    exponentiate(0);
#pragma unroll
    for (int j = 0; j < kKeys / 8; j += 2) {
#pragma unroll
      for (int d = 0; d < kDim / 8; d += 2) {
        uint32_t b[4];
        arch::ldmatrix_x4_trans(b, rows + j * 8 * kPitch + d * 8);
        arch::mma_m16n8k16<Element>(o[d], a[j / 2 % 2], b[0], b[1]);
        arch::mma_m16n8k16<Element>(o[d + 1], a[j / 2 % 2], b[2], b[3]);
        if (d == 0 && j + 2 < kKeys / 8) exponentiate(j + 2);
      }
    }
  }
};

const Variant kVariant{
    .ladder = "kascade",
    .rung = 11,
    .name = "fused-exponential",
    .idea = "rung 4 with the exponentials of the next 16 keys amid the product of these 16",
    .finding =
        "4.27 ms at 32k where rung 4 takes 4.22 (an H100): the compiler interleaved most of them already, "
        "and the rest cost registers.",
    .predicted = {.over = "4-prefetch"},
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan_prefetching<FusedWork>,
    .launch = launch_prefetching<FusedWork>,
    .trace = trace_prefetching};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
