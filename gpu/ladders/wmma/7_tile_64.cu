// V3 of source 002: 64 queries per block, eight warps; 40 KB of shared memory at head_dim 64 (8 + 4 + 4 + 8 +
// 16) before padding.
//
// Predicted: K and V are read half as often, and every warp now has a block of scores. A block still walks as
// many K/V tiles (16 at S = 512; the document says they halve), but there are half as many blocks. At B 2, H
// 8, S 512 there are 128 blocks for 132 multiprocessors: one wave of tiles twice as large. The document
// expects 1.5 to 2 x, and 2.8 x over V1.

#include "gpu/ladders/wmma/phases.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  constexpr int kTileM = 64, kWarps = 8, kPadding = kPad;
  return plan_in_phases<kTileM, kWarps, kPadding, Barriers::four_a_tile>(spec, dtype, "tile-64");
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 7,
    .name = "tile-64",
    .idea = "tiles of 64 queries: K and V are read half as often, all eight warps multiply",
    .finding =
        "0.95x at B 2 and 0.66x at B 1, where half as many blocks leave multiprocessors idle; 1.01x at B 4, "
        "H 16, S 4096. Over V1 3.5x at B 2, 2.6x at B 1.",
    .predicted = {.over = "6-fewer-barriers", .low = 1.5, .high = 2.0, .claim = "S2.4a"},
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan,
    .launch = launch_tiles,
    .trace = trace_tiles};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
