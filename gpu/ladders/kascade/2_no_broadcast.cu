// No broadcast temporaries (source 001, section 4: 5 to 10 %, claim S1.4). After two shuffles, the four lanes
// that share a row in the accumulator's layout hold its maximum and sum, where they are needed.
//
// Predicted: the last 5 arrays of 16 KiB per step go: 640 of some 7200 cycles, 9 %.

#include "gpu/ladders/kascade/register_softmax.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;
using Softmax = RegisterSoftmax<128, 128>;

const Variant kVariant{
    .ladder = "kascade",
    .rung = 2,
    .name = "no-broadcast",
    .idea = "no broadcast temporaries: shuffles leave a row's maximum and sum where they are needed",
    .finding = "8.5 ms at 32k: 1.07 times (1.05 at 8k), as promised.",
    .predicted = {.over = "1-register-state", .low = 1.05, .high = 1.10, .claim = "S1.4"},
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan_sequential<Softmax>,
    .launch = launch_sequential<Softmax>,
    .trace = trace_sequential,
    .profile = profile_sequential<Softmax>()};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
