// Rung 2: one launch. What was written to memory and read back stays in shared memory: a bit per pair, 8
// bytes per kept key, N/8 kept keys per row. The kept scores are no longer computed twice. The products and
// the selection are as before. At N 1024 this saves two launches (5 us) and 34 MB of L2 traffic (10 us) of
// some 200 us: expected 1.2-2x, not 10-15x.

#include "gpu/ladders/splash/fused.cuh"

namespace splash::gpu {
namespace {

using sparse::Keep;
using sparse::PlainLoads;

void launch(const AttentionSpec& spec, Dtype, const Plan& plan, const Arguments& arguments) {
  sparse::launch_fused<Keep::top_k>(spec, plan, arguments, PlainLoads{static_cast<const float*>(arguments.k)},
                                    PlainLoads{static_cast<const float*>(arguments.v)});
}

const Variant kVariant{
    .ladder = "splash",
    .rung = 2,
    .name = "fused",
    .idea = "one launch: kept keys and scores live in shared memory and are never computed twice",
    .finding =
        "1.05x at N 1024 but 0.77x at 32768: the launches were never the cost, and shared memory, half of it "
        "lists, leaves fewer warps an SM than rung 0 has.",
    .predicted = {.over = "0-three-launches", .low = 10, .high = 15, .claim = "S0.2d"},
    .limits = sparse::fp32_limits(NormalizerKind::entmax, {32, 64}),
    .tolerance = {.f32 = 1e-10},
    .plan = sparse::plan_fused<Keep::top_k, PlainLoads>,
    .launch = launch,
    .trace = sparse::trace_fused};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
