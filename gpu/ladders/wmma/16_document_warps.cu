// Rung 7 with source 002's warp distribution, to compare with ours. Ours: in Q K^T each of the eight warps
// takes one block of 16 x 16, and in P V one block per turn. The document's: in Q K^T four warps take one
// M-block by two N-blocks while the others wait, and in P V all eight take 1 x 2 (the document says four,
// which covers half of the blocks).
//
// Predicted: two N-blocks share their fragments of Q or P. In Q K^T at head_dim 64 a warp loads 12 fragments
// instead of 8 and waits for two chains of products instead of one, but four warps load 48 in all instead of
// 64. In P V a warp loads 6 instead of 8. A quarter fewer fragments where shared memory is the bottleneck
// (the chip full): 1.05 x. Half of the warps idle in a phase where latency decides (S 512): 0.95 x.

#include "gpu/ladders/wmma/phases.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  constexpr int kTileM = 64, kWarps = 8, kPadding = kPad, kBlocksOfAWarp = 2;
  return plan_in_phases<kTileM, kWarps, kPadding, Barriers::four_a_tile, kBlocksOfAWarp>(spec, dtype,
                                                                                         "document-warps");
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 16,
    .name = "document-warps",
    .idea = "rung 7 with the document's warps: one M-block by two N-blocks each, four of eight at Q K^T",
    .finding =
        "1.08x over rung 7 at S 512, 1.06x where the chip is full (an H100), presumably because two blocks a "
        "warp share an operand.",
    .predicted = {.over = "7-tile-64"},
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan,
    .launch = launch_tiles,
    .trace = trace_tiles};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
