// Exponential and product fused (source 001, phase 4): the row's maximum is known, so the exponentials of the
// next 16 keys are computed amid the products of these 16, instead of all 64 before the first product. Rung 4
// otherwise.
//
// What the compiler made of it, ptxas 13.0: of the 64 HMMA of P V, sm_80 has 48 between the first and the
// last EX2, with or without this rung: there the scheduler has fused them already. For sm_90a it had put 9
// there and now puts 48, at the price of registers: 112 bytes spilled a thread at the 128 of two blocks an
// SM, none before.
//
// Predicted: on Hopper the 8192 exponentials of a 128 x 64 tile are 512 cycles of the special function units,
// of the 4,300 that rung 4 takes; the other block of the SM hides much of them already, and the spills cost
// some: 1.0 to 1.05. On sm_80 1.0.

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
    uint32_t a[2][4];  // of these keys, and of the next
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
