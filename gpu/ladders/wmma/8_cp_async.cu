// Source 002, option B: cp.async loads K and V of the next tile while the block works on this one. Q is
// loaded once, so two stages take 8 + 2 x (4 + 4) + 8 + 16 = 48 KB at head_dim 64 (before padding), which
// every block may have. The document doubles Q too, counts 56 KB and gives up, although a kernel may simply
// request more than 48 KB.
//
// Predicted: a tile's 8 KB come from L2 at about 600 cycles of latency, with nothing else to do, of some 3000
// per tile. The document expects 1.2 x.

#include "gpu/ladders/wmma/async_walks.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  constexpr int kTileM = 64, kStages = 2;
  return plan_async<kTileM, kStages>(spec, dtype, "cp-async");
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 8,
    .name = "cp-async",
    .idea = "cp.async double buffering of K and V; Q is loaded once",
    .finding =
        "1.04x to 1.06x, where the document expects 1.2x: a tile's loads are all under way before the first "
        "is used, and little waiting is left to hide (1.2x where they went one after the other).",
    .predicted = {.over = "7-tile-64", .low = 1.2, .high = 1.2, .claim = "S2.5a"},
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan,
    .launch = launch_tiles,
    .trace = trace_async};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
