// A queue of items, the longest lists first. A block that has finished takes the next item, instead of every
// 132nd one. Under a causal mask a list grows with its tile's position, and a fixed stride gives some blocks
// the longest list of every head: with 256 tiles per head and 132 blocks, the first block's lists are a
// quarter longer than the mean.
//
// Predicted: 8k keys: 1.2 times (15.5 tiles per block; the worst block has 1.26 times the mean). 32k keys:
// 1.03 (62 tiles per block; a head's 7.8 rounds spread evenly). The kernel that initialises the queue costs 2
// us.

#include "gpu/ladders/kascade/gathering.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  Plan plan = plan_gathering(spec, dtype, device);
  plan.kernels.insert(plan.kernels.begin(),
                      {"reset_queue", reinterpret_cast<const void*>(&reset_queue), 1, 32, 0});
  plan.workspace_bytes = sizeof(int);
  return plan;
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& arguments) {
  auto* const queue = static_cast<int*>(arguments.workspace);
  reset_queue<<<1, 32, 0, arguments.stream>>>(queue, static_cast<int>(plan.kernels[1].blocks));
  check_launch("reset_queue");
  launch_gathering(spec, dtype, plan.kernels[1], arguments, queue);
}

const Variant kVariant{
    .ladder = "kascade",
    .rung = 6,
    .name = "work-queue",
    .idea = "blocks take the next longest tile from a queue, so that none is left with the long ones",
    .finding =
        "0.178 instead of 0.199 ms at 8k, 1.12 times; at 32k, at the power limit, 0.94 to 1.07 times in "
        "three records.",
    .limits = limits_of({.compute_capability = 90}),
    .plan = plan,
    .launch = launch,
    .trace = trace_gathering};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
