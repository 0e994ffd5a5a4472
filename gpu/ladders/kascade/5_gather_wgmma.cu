// Hopper: one warpgroup gathers the listed keys into swizzled shared memory, and two warpgroups multiply 64
// rows each by wgmma. The score product of the next tile runs during the softmax of this one (as in
// FlashAttention-3, Shah et al. 2024). Probabilities never leave the registers. Blocks are persistent, so the
// gathers of the next list begin while the last rows are being finished. The gathers use cp.async, 16 bytes
// per thread: a bulk copy of a row cannot swizzle, and wgmma's unswizzled layout scatters the 16-byte chunks
// of a row.
//
// Predicted: a 128 x 128 tile costs 2048 cycles of tensor cores, 1024 of exponentials and some 350 issue
// slots per warp (x 2 warps per scheduler); overlapped, some 2700. Its 64 KiB from L2 take 64 KiB / 40 bytes
// per cycle = 1640 cycles, hidden. 10 % of 32k keys are 8 x 1024 lists of 1638 keys on average (13.3 tiles):
// 8192 x 13.3 / 132 x 2700 cycles = 1.3 ms.

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
