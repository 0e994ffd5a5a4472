// Rung 0: source 000 as it stands. The first launch computes all scores and marks the K_KEEP largest of each
// key block. The second turns the marks into lists. The third computes the listed scores again, solves
// alpha-entmax by bisection and gathers the values.
//
// Expected at B 2, H 8, N 1024, d 64, causal: 1.1 GFLOP of scores at some 20 TFLOP/s are 0.06 ms. Choosing 8
// of 64 keys takes a warp about as long as the 4096 products of a row and block. The lists hold 128 keys per
// row and need 26 halvings each. In all some 0.2 ms, far below the document's 18 ms. Three launches would
// explain 0.01 ms of those.

#include "gpu/ladders/splash/three_launches.cuh"

namespace splash::gpu {
namespace {

const Variant kVariant{
    .ladder = "splash",
    .rung = 0,
    .name = "three-launches",
    .idea = "build a mask, build lists from it, then attend over the lists: tiles of 32 queries by 64 keys",
    .finding =
        "At N 1024 the mask takes 398 us, the lookup 10, the forward 179 (each alone, by ncu), and a launch "
        "some 2: the time is the kernels' own work, choosing 8 of 64 and scoring the kept keys again, not "
        "launching.",
    .limits = sparse::fp32_limits(NormalizerKind::entmax, {32, 64}),
    .plan = sparse::plan_three_launches<32, 64, 4>,
    .launch = sparse::launch_three<32, 64, 4>,
    .trace = sparse::trace_three};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
