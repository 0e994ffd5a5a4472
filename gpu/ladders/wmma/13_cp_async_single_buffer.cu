// Source 002's other way around the memory of a double buffer: "single-buffering with async (less benefit)".
// One buffer of K and one of V, refilled as soon as each is read: K arrives during the softmax and P V, V
// during the accumulation and the next tile's Q K^T. Shared memory as on rung 6, 26.5 KB at head_dim 64.
//
// Before the code: of the 2100 cycles of a tile at B 1, H 8, S 512 some 1450 are work, of which K's load is
// hidden behind more than half and V's behind less than half, each about as long as the 600 to 700 cycles
// that L2 takes: 1.3 x, a little less than two buffers. Where the chip is full: 1.05 x. Shared memory is not
// what limits either (registers leave three blocks a multiprocessor). The document names no number.

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
