// Rung 3: source 000's "simple" entmax, max(s, 0)^alpha, in the fused kernel. It needs no list and no solver:
// a kept key is weighed at once. But its threshold is 0 where entmax has tau. Half of the kept keys therefore
// carry weight, N/16 per row instead of some 7, and each reads 256 bytes of V. At N 1024, 26 halvings of 4
// sums per row cost about as much as gathering 64 rows of V: expected 0.8-1.2x, and a different result.

#include "gpu/ladders/splash/fused.cuh"

namespace splash::gpu {
namespace {

using sparse::Keep;
using sparse::PlainLoads;

void launch(const AttentionSpec& spec, Dtype, const Plan& plan, const Arguments& arguments) {
  sparse::launch_fused<Keep::power>(spec, plan, arguments, PlainLoads{static_cast<const float*>(arguments.k)},
                                    PlainLoads{static_cast<const float*>(arguments.v)});
}

const Variant kVariant{
    .ladder = "splash",
    .rung = 3,
    .name = "power",
    .idea = "max(s, 0)^alpha instead of entmax: no threshold to solve for, and many more values",
    .finding =
        "0.86x at N 1024, 0.98x at 32768: no solver, but presumably the values of every kept key with a "
        "positive score instead cost as much; and it is another result.",
    .predicted = {.over = "2-fused", .low = 2, .high = 3, .claim = "S0.4f"},
    .limits = sparse::fp32_limits(NormalizerKind::power, {32, 64}),
    .tolerance = {.f32 = 1e-10},
    .plan = sparse::plan_fused<Keep::power, PlainLoads>,
    .launch = launch,
    .trace = sparse::trace_fused};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
