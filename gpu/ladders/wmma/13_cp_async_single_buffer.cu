// Source 002's other answer to the memory of a double buffer: "single-buffering with async (less benefit)".
// There is one buffer of K and one of V, and each is refilled as soon as it has been read. K arrives during
// the softmax and P V; V arrives during the accumulation and the next tile's Q K^T. It takes as much shared
// memory as rung 6, 26.5 KB at head_dim 64.
//
// Predicted: of a tile's 2100 cycles at B 1, H 8, S 512 some 1450 are work. More than half of it hides K's
// load, less than half V's. Each share is about as long as the 600 to 700 cycles that L2 takes: 1.3 x, a
// little less than with two buffers. Where the chip is full: 1.05 x. Shared memory limits neither rung
// (registers leave three blocks per multiprocessor). The document names no number.

#include "gpu/ladders/wmma/async_walks.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  constexpr int kTileM = 32, kStages = 1;
  return plan_async<kTileM, kStages>(spec, dtype, "cp-async-single-buffer");
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 13,
    .name = "cp-async-single-buffer",
    .idea =
        "rung 6 with cp.async into one buffer each: K arrives after Q K^T of the tile before, V after P V",
    .finding =
        "1.16x over rung 6 at S 512, 1.02x where the chip is full (an H100): one buffer gains as much as "
        "two.",
    .predicted = {.over = "6-fewer-barriers"},
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan,
    .launch = launch_tiles,
    .trace = trace_async};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
