// Without the hint of source 001, section 5: preferred_element_type = float32 on the second product (3 to 5
// %, claim S1.5). Without it JAX rounds each step's P V to the 16 bits of its operands and adds that to the
// float32 O. This rung does the same: mma.sync with float16 accumulators over the 128 keys of a tile, whose
// results are then converted and added. All other rungs have the hint, as their accumulators are float32. No
// instruction accumulates bf16 in 16 bits, so this rung takes float16 alone. The rest is rung 2.
//
// What the compiler made of it (ptxas 13.0, sm_80 / sm_90a): 128 of the 256 HMMA.16816.F32 become .F16. The
// kernel takes 218 / 227 registers instead of 222 / 222, and 2273 / 2327 instructions instead of 2177 / 2229.
// A tile has 64 more conversions (HADD2.F32) and 64 more additions, because O is no longer the accumulator.
//
// Predicted: A100 and H100 accumulate in float32 at float16's rate (consumer GPUs at half of it), so the
// products with the hint are as fast. The hint saves 128 instructions per warp, or 256 issue slots per
// scheduler and tile, out of rung 2's 10.2 us = 17,000 cycles: 1.5 %, not 3 to 5. Simulated nmse: 2 to 3e-7,
// where float32 gives 4 to 9e-8.

#include "gpu/ladders/kascade/register_softmax.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

struct HalfProducts : RegisterSoftmax<128, 128> {
  using RegisterSoftmax::RegisterSoftmax;

  __device__ void multiply(float (&o)[kDim / 8][4], const float (&s)[kKeys / 8][4],
                           const __half* values) const {
    const int lane = threadIdx.x % 32;
    const __half* const v = values + lane % 16 * kPitch + lane / 16 * 8;
    uint32_t product[kDim / 8][2] = {};
#pragma unroll
    for (int j = 0; j < kKeys / 8; j += 2) {
      uint32_t a[4];
      pack_probabilities<__half>(a, s, j);
#pragma unroll
      for (int d = 0; d < kDim / 8; d += 2) {
        uint32_t b[4];
        arch::ldmatrix_x4_trans(b, v + j * 8 * kPitch + d * 8);
        arch::mma_m16n8k16_f16(product[d], a, b[0], b[1]);
        arch::mma_m16n8k16_f16(product[d + 1], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&product[d][half]));
        o[d][2 * half] += pair.x;
        o[d][2 * half + 1] += pair.y;
      }
    }
  }
};

Plan plan(const AttentionSpec& spec, Dtype, const DeviceInfo&) {
  return plan_items(spec, {.q = HalfProducts::kRows, .k = HalfProducts::kKeys}, "attend_sequentially",
                    reinterpret_cast<const void*>(&attend_sequentially<__half, HalfProducts>),
                    sizeof(SequentialShared<__half, HalfProducts>));
}

void launch(const AttentionSpec& spec, Dtype, const Plan& plan, const Arguments& arguments) {
  const KernelLaunch& kernel = plan.kernels.front();
  attend_sequentially<__half, HalfProducts>
      <<<static_cast<unsigned>(kernel.blocks), kernel.threads, kernel.shared_bytes, arguments.stream>>>(
          Problem::of(spec, HalfProducts::kRows, arguments));
  check_launch(kernel.name.c_str());
}

const Variant kVariant{
    .ladder = "kascade",
    .rung = 9,
    .name = "half-products",
    .idea = "rung 2 without the hint: a tile's P V is accumulated in float16, and added to a float32 O",
    .finding =
        "8.56 ms at 32k where float32 sums take 8.47 (an H100): the hint gains 1 %, for the products were "
        "never the limit.",
    .predicted = {.over = "2-no-broadcast", .low = 1 / 1.05, .high = 1 / 1.03, .claim = "S1.5"},
    .limits = limits_of({.compute_capability = 80, .dtypes = {Dtype::f16}}),
    .tolerance = {.f16 = 5e-6},  // float16 rounds eight times per tile
    .plan = plan,
    .launch = launch,
    .trace = trace_sequential};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
