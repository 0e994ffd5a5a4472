// Source 002 overlooks bank conflicts, and they hide most of what it tries. Its tiles have rows of 128 bytes,
// so the eight rows that a fragment's load reads at once lie in the same banks. Padding each row by 16 bytes
// removes the conflicts.
//
// Predicted: a tile's products load 4 x 4 x 2 fragments of Q and K and 8 x 2 x 2 of P and V, 512 bytes each.
// An 8-way conflict makes that 32 cycles instead of 4, so padding saves 64 x 28 = 1800 cycles of shared
// memory. That halves the time if the block waits for shared memory.

#include "gpu/ladders/wmma/phases.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  constexpr int kTileM = 32, kWarps = 4, kPadding = kPad;
  return plan_in_phases<kTileM, kWarps, kPadding, Barriers::after_each_phase>(spec, dtype, "padded-rows");
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 3,
    .name = "padded-rows",
    .idea = "rows of shared memory padded by 16 bytes: fragments load without bank conflicts",
    .finding =
        "1.99x at B 2, 2.2x on a grid that fills the chip (B 4, H 16, S 4096): the largest step of the WMMA "
        "rungs, and not in the document.",
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan,
    .launch = launch_tiles,
    .trace = trace_tiles};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
