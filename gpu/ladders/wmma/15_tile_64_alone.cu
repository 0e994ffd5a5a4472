// V3 of source 002 as its "implementation steps" have it: V2 with TILE_M 64 and eight warps, without the
// padding, the inline conversion and the fewer barriers on which rung 7 builds. Warps are distributed as in
// the document. In Q K^T four of the eight warps take one M-block by two N-blocks each. In P V the document
// lets "each of 4 warps" take 1 x 2 of 4 x 4 blocks. That covers half of them, so every other pair of
// N-blocks of the result would be wrong. Here each of the eight warps takes 1 x 2, which covers all sixteen
// blocks at head_dim 64; at 128 and 256 the warps take turns.
//
// Predicted: V2 takes 36.7 us at B 1, H 8, S 512 in 128 blocks, one per multiprocessor. This rung has 64
// blocks, each with twice the work and twice the warps, and half of the multiprocessors idle. The eight-way
// bank conflicts of 128-byte rows stay. They load the multiprocessor, not the warp, so twice the fragments
// take twice as long. 0.6 x there, and 1.0 to 1.1 x where the chip is full (K and V are read half as often).
// The document expects 1.5 to 2 x over V2, and 2.8 x over V1. 40 KB of shared memory at head_dim 64.

#include "gpu/ladders/wmma/phases.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  constexpr int kTileM = 64, kWarps = 8, kPadding = 0, kBlocksOfAWarp = 2;
  return plan_in_phases<kTileM, kWarps, kPadding, Barriers::after_each_phase, kBlocksOfAWarp>(
      spec, dtype, "tile-64-alone");
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 15,
    .name = "tile-64-alone",
    .idea = "V2 with tiles of 64 queries and eight warps and nothing else: the document's V3",
    .finding =
        "0.63x of V2 at S 512, where half of the blocks leave more multiprocessors idle; 1.15x where the "
        "chip is full (an H100).",
    .predicted = {.over = "2-wmma", .low = 1.5, .high = 2.0, .claim = "S2.4a"},
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan,
    .launch = launch_tiles,
    .trace = trace_tiles};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
