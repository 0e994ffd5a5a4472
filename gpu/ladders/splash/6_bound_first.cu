// Rung 6: no longer an idea of the document. A key whose score is not above a lower bound of tau has p = 0
// whether it is among the k_keep of its block or not, and tau of any of the selected keys is such a bound:
// (alpha - 1) s_max - 1 to begin with, a few halvings over the list later. So only scores above the bound are
// chosen from, and most tiles have none: 16 comparisons a lane stand for a store of 512 scores and 8
// selections. What is left is the dense fp32 product, about half of rung 4. Expected: 2x over it. The result
// is the same: exact.

#include "gpu/ladders/splash/fused.cuh"

namespace splash::gpu {
namespace {

using sparse::Keep;
using sparse::ReadOnlyLoads;

void launch(const AttentionSpec& spec, Dtype, const Plan& plan, const Arguments& arguments) {
  sparse::launch_fused<Keep::above_bound>(spec, plan, arguments,
                                          ReadOnlyLoads{static_cast<const float*>(arguments.k)},
                                          ReadOnlyLoads{static_cast<const float*>(arguments.v)});
}

const Variant kVariant{
    .ladder = "splash",
    .rung = 6,
    .name = "bound-first",
    .idea = "choose among the scores above a certified lower bound of tau: elsewhere p is 0",
    .finding =
        "1.26x over rung 4 at N 1024, 1.52x at 4096, 2.27x at 32768: the rarer the keys above the bound, the "
        "more selections are spared.",
    .limits = sparse::fp32_limits(NormalizerKind::entmax, {32, 64}),
    .tolerance = {.f32 = 1e-10},
    .plan = sparse::plan_fused<Keep::above_bound, ReadOnlyLoads>,
    .launch = launch,
    .trace = sparse::trace_fused};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
