// Rung 1: BLOCK_M 32 -> 128 and BLOCK_N 64 -> 256, as source 000 asks. Only the tile of the product grows.
// Keys are still selected per block of the selection's own size, because K_KEEP of 256 keys would be another
// result, not a faster one; set the selection block to 256 to see it. The product reads shared memory 3 times
// less often per score and could gain 2x. The selection, which takes as long as the product, gains nothing.
// One block of 8 warps fits an SM, where rung 0 had 32 warps. Expected: 0.7-1.2x.

#include "gpu/ladders/splash/three_launches.cuh"

namespace splash::gpu {
namespace {

const Variant kVariant{
    .ladder = "splash",
    .rung = 1,
    .name = "tiles-128-256",
    .idea = "tiles of 128 queries by 256 keys: fewer, larger blocks; as many launches",
    .finding =
        "Slower, 0.84x at N 1024 and 0.71x at 32768: as many launches and as many selections, by one block "
        "of 8 warps an SM, presumably too few to hide the latency of selecting.",
    .predicted = {.over = "0-three-launches", .low = 3, .high = 5, .claim = "S0.3b"},
    .limits = sparse::fp32_limits(NormalizerKind::entmax, {32, 64, 128, 256}),
    .plan = sparse::plan_three_launches<128, 256, 8>,
    .launch = sparse::launch_three<128, 256, 8>,
    .trace = sparse::trace_three};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
