// Rung 6: an idea beyond the document. A key whose score is not above a lower bound of tau has p = 0, whether
// or not it is among the k_keep of its block. The tau of any subset of the selected keys is such a bound:
// (alpha - 1) s_max - 1 at first, later the result of a few halvings over the list. So the selection looks
// only at scores above the bound, and most tiles have none: 16 comparisons per lane replace a store of 512
// scores and 8 selections. The dense fp32 product is left, about half of rung 4. Expected: 2x over rung 4.
// The result is the same and exact.

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
