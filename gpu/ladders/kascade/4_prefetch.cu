// Prefetch (source 001, section 1: 30 to 50 %, claim S1.1). There are two buffers: while the warps work on
// one tile, cp.async loads the next tile into the other buffer, bypassing the registers. 64 keys per tile,
// two blocks per SM.
//
// Predicted: rung 3 already hides one block's loads behind the other's work. What is left to gain is the wait
// at the barrier and the loads' trip through the registers (16 per thread and tile): 1.2 times.

#include "gpu/ladders/kascade/prefetch.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

const Variant kVariant{
    .ladder = "kascade",
    .rung = 4,
    .name = "prefetch",
    .idea = "cp.async gathers the next tile into a second buffer meanwhile",
    .finding =
        "4.2 ms at 32k: 1.32 times (1.33 at 8k), the low end of what was promised; 211 TFLOP/s executed.",
    .predicted = {.over = "3-tile-128x64", .low = 1.30, .high = 1.50, .claim = "S1.1"},
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan_prefetching<PlainWork>,
    .launch = launch_prefetching<PlainWork>,
    .trace = trace_prefetching};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
