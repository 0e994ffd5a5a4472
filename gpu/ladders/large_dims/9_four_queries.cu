// Rung 9: rung 1 with 4 queries per block, the fewest that source 003 names.
//
// Arithmetic at head_dim 8192, 4 heads x 16 x 16, fp32: 16 blocks instead of 4. A chunk's products read 32 x
// (1 + 1) words per lane: 512 cycles instead of 1280, of some 3400. A chunk's operands are 68 rows instead of
// 80. So 1.4 to 1.5 x over rung 1, 330 us; rung 0, whose 64 blocks do not wait for one another, keeps its
// 64 us. Where the chip is full, a product reads two words of shared memory instead of 1.25: 0.65 x of rung
// 1.

#include "gpu/ladders/large_dims/shared_keys.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 9,
    .name = "four-queries",
    .idea = "rung 1 with four queries a block: four times the blocks, a quarter of the sharing",
    .finding =
        "1.8x over rung 1 at head_dim 8192 and still 4.1 times slower than one query a block; 0.84x of rung "
        "1 where the chip is full (an H100).",
    .predicted = {.over = "0-one-query", .low = 10, .high = 20, .claim = "S3.9a"},
    .limits =
        {
            .dtypes = {Dtype::f32, Dtype::bf16},
            .head_dim_max = 8192,
            .causal = true,
            .compute_capability = 75,
        },
    .plan = plan_shared_keys<4>,
    .launch = launch_shared_keys<4>,
    .trace = trace_shared_keys};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
