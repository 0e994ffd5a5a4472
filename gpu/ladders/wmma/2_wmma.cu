// V2 of source 002: the products run on tensor cores through nvcuda::wmma, 16 x 16 x 16. Everything else is
// as plain as in the document: scores, probabilities and each tile's product pass through shared memory, fp32
// probabilities are converted in a pass of their own, and every phase ends at a barrier (ten per tile of 32
// keys).
//
// Predicted: the products themselves shrink to 1.07 GFLOP / 800 TFLOP/s = 1.3 us. What is left is
// shared-memory traffic, about 2 x 4 KB of scores five times and 2 x 8 KB of product per tile, all with 8-way
// bank conflicts where rows are 128 bytes apart, and ten barriers of some 30 cycles. The document measured
// 1.58 x over V1.

#include "gpu/ladders/wmma/phases.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  constexpr int kTileM = 32, kWarps = 4, kPadding = 0;
  return plan_in_phases<kTileM, kWarps, kPadding, Barriers::after_each_phase>(spec, dtype, "wmma");
}

const Variant kVariant{.ladder = "wmma",
                       .rung = 2,
                       .name = "wmma",
                       .idea =
                           "products by nvcuda::wmma; scores, probabilities and products pass through shared "
                           "memory, ten barriers a tile",
                       .finding =
                           "1.53x over V1 at B 2 (2.09x at B 1; the document had 1.58x): the products became "
                           "cheap, but each fragment's load meets an 8-way bank conflict.",
                       .predicted = {.over = "1-scalar", .low = 1.58, .high = 1.58, .claim = "S2.0a"},
                       .limits = limits_of({.compute_capability = 80}),
                       .plan = plan,
                       .launch = launch_tiles,
                       .trace = trace_tiles};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
