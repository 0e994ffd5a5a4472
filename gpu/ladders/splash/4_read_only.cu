// Rung 4: K and V through the read-only path (ld.global.nc), 16 bytes per lane, 256-byte rows: the "128-byte
// aligned chunks" of source 000. The plain loads were already coalesced and K tiles come from L2, so this
// saves only instructions: 12 of some 2000 per warp and tile. Expected: 1.0-1.1x, not 1.5-2x.

#include "gpu/ladders/splash/fused.cuh"

namespace splash::gpu {
namespace {

using sparse::Keep;
using sparse::ReadOnlyLoads;

void launch(const AttentionSpec& spec, Dtype, const Plan& plan, const Arguments& arguments) {
  sparse::launch_fused<Keep::top_k>(spec, plan, arguments,
                                    ReadOnlyLoads{static_cast<const float*>(arguments.k)},
                                    ReadOnlyLoads{static_cast<const float*>(arguments.v)});
}

const Variant kVariant{.ladder = "splash",
                       .rung = 4,
                       .name = "read-only",
                       .idea = "K and V by 16-byte loads through the read-only path",
                       .finding =
                           "1.18x at N 1024, 1.24x at 32768: 16-byte loads are a quarter as many "
                           "instructions; how much of it the read-only path adds was not told apart.",
                       .predicted = {.over = "2-fused", .low = 1.5, .high = 2, .claim = "S0.5"},
                       .limits = sparse::fp32_limits(NormalizerKind::entmax, {32, 64}),
                       .tolerance = {.f32 = 1e-10},
                       .plan = sparse::plan_fused<Keep::top_k, ReadOnlyLoads>,
                       .launch = launch,
                       .trace = sparse::trace_fused};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
