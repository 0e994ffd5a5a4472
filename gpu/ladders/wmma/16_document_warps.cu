// Rung 7 with source 002's warp distribution beside ours. Ours: each of the eight warps one block of 16 x 16
// of Q K^T, and of P V one block a turn. The document's: four warps one M-block by two N-blocks of Q K^T
// while the others wait; of P V 1 x 2 by all eight (the document says four, which is half of the blocks).
//
// Before the code: two N-blocks share their fragments of Q or P. Of Q K^T at head_dim 64 a warp loads 12
// fragments instead of 8 and waits for two chains of products instead of one, but four warps load 48 instead
// of 64 in all; of P V 6 instead of 8 a warp. A quarter fewer fragments where shared memory is what is short
// (the chip full): 1.05 x; half of the warps idle in a phase where latency decides (S 512): 0.95 x.

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
