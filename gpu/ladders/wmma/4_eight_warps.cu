// Source 002, quick win 2: eight warps per block instead of four, for the same tile.
//
// Predicted: twice the warps halve each warp's share of the softmax and the accumulation. But a 32 x 32 tile
// of scores has only four blocks of 16 x 16, so four of the eight warps idle during Q K^T. The document
// expects 5 to 10 %.

#include "gpu/ladders/wmma/phases.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  constexpr int kTileM = 32, kWarps = 8, kPadding = kPad;
  return plan_in_phases<kTileM, kWarps, kPadding, Barriers::after_each_phase>(spec, dtype, "eight-warps");
}

const Variant kVariant{.ladder = "wmma",
                       .rung = 4,
                       .name = "eight-warps",
                       .idea = "eight warps a block instead of four, same tile",
                       .finding =
                           "1.09x at B 2 and 1.03x at B 1, but nothing at B 4, H 16, S 4096: it pays where "
                           "the grid leaves multiprocessors short of warps.",
                       .predicted = {.over = "3-padded-rows", .low = 1.05, .high = 1.10, .claim = "S2.2"},
                       .limits = limits_of({.compute_capability = 80}),
                       .plan = plan,
                       .launch = launch_tiles,
                       .trace = trace_tiles};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
