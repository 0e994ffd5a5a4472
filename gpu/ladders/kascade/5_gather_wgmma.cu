// Hopper: one warpgroup gathers the listed keys into swizzled shared memory, two multiply by wgmma, 64 rows
// each. The scores of the next tile are multiplied while the softmax of this one runs (as FlashAttention-3
// does, Shah et al. 2024), probabilities never leave the registers, and blocks are persistent, so that the
// gathers of the next list begin while the last rows are finished. A row bulk copy cannot swizzle, and
// wgmma's unswizzled layout wants every 16-byte chunk of a row elsewhere: hence cp.async, 16 bytes a thread.
//
// Predicted: a 128 x 128 tile costs 2048 cycles of tensor cores, 1024 of exponentials and some 350 issue
// slots a warp (x 2 warps a scheduler), overlapped some 2700; its 64 KiB from L2 take 64 KiB / 40 bytes a
// cycle = 1640, hidden. 10 % of 32k keys, 8 x 1024 lists of 1638 keys on average (13.3 tiles): 8192 x 13.3 /
// 132 x 2700 cycles = 1.3 ms.

#include "gpu/ladders/kascade/gathering.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& arguments) {
  launch_gathering(spec, dtype, plan.kernels[0], arguments, nullptr);
}

const Variant kVariant{
    .ladder = "kascade",
    .rung = 5,
    .name = "gather-wgmma",
    .idea = "a warpgroup gathers into swizzled shared memory, two multiply by wgmma; persistent blocks",
    .finding =
        "1.93 ms at 32k, 2.2 times rung 4 (1.7 at 8k) and 7.8 times cuDNN dense (15.0 ms), 474 TFLOP/s "
        "executed; copies one address at a time and 24 to 40 registers for the producers cost up to 15 %.",
    .limits = limits_of({.compute_capability = 90}),
    .plan = plan_gathering,
    .launch = launch,
    .trace = trace_gathering};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
