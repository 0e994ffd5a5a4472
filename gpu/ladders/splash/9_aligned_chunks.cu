// Rung 9: source 000's "load data in 128-byte aligned chunks" alone, without the read-only path that rung 4
// adds: K and V by ordinary loads of 16 bytes per lane. Eight lanes read a chunk, and rows start on a chunk
// at head_dims that are multiples of 32.
//
// Predicted: the plain loads of rung 2 are coalesced too, one chunk per warp and instruction. So this saves
// no bytes, only instructions: the 4096 floats of a K tile take 8 loads and stores per lane instead of 32 +
// 32, of some 2000 instructions per warp and tile, and the row of a kept value is one load instead of two.
// Rung 4 gained 1.2 x over rung 2, and since Volta ordinary loads use L1 as read-only ones do. So 1.2 x here,
// and 1.0 x for rung 4 over this. The document expects 1.5 to 2 x of both together.

#include "gpu/ladders/splash/fused.cuh"

namespace splash::gpu {
namespace {

using sparse::ChunkLoads;
using sparse::Keep;

void launch(const AttentionSpec& spec, Dtype, const Plan& plan, const Arguments& arguments) {
  sparse::launch_fused<Keep::top_k>(spec, plan, arguments, ChunkLoads{static_cast<const float*>(arguments.k)},
                                    ChunkLoads{static_cast<const float*>(arguments.v)});
}

const Variant kVariant{
    .ladder = "splash",
    .rung = 9,
    .name = "aligned-chunks",
    .idea = "rung 2 with K and V by ordinary 16-byte loads: rung 4 without the read-only path",
    .finding =
        "1.21x over rung 2 at N 2048 (an H100), all of what rung 4 gains: the read-only path adds nothing.",
    .predicted = {.over = "2-fused", .low = 1.5, .high = 2, .claim = "S0.5"},
    .limits = sparse::fp32_limits(NormalizerKind::entmax, {32, 64}),
    .tolerance = {.f32 = 1e-10},
    .plan = sparse::plan_fused<Keep::top_k, ChunkLoads>,
    .launch = launch,
    .trace = sparse::trace_fused};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
