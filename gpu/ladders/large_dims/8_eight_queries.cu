// Rung 8: rung 1 with 8 queries per block instead of 16. Source 003 says "process 4-16 queries per block".
// Rung 1 takes the 16 of which the source expects most; at head_dim 8192 with 16 queries these leave 4 blocks
// for 132 multiprocessors.
//
// Arithmetic at head_dim 8192, 4 heads x 16 x 16, fp32: 8 blocks instead of 4. K and V leave L2 twice (8 MB,
// still nothing). A block's time is its 256 chunks of 32 dims, 1.9 us each in rung 1 (491 us / 256). The
// products of a chunk read 32 x (1 + 4) words per lane from shared memory for 16 queries and 32 x (1 + 2) for
// 8; with 8 warps that is 1280 cycles and 768. The rest, loads from L2 between two barriers, stays. So 1.2 to
// 1.3 x over rung 1. Where the chip is full (B 8, 512 x 512, d 2048) there are twice the blocks, each 0.6
// times as long: 0.85 x.

#include "gpu/ladders/large_dims/shared_keys.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;

const Variant kVariant{.ladder = "large_dims",
                       .rung = 8,
                       .name = "eight-queries",
                       .idea = "rung 1 with eight queries a block: twice the blocks, half the sharing",
                       .finding =
                           "1.4x over rung 1 at head_dim 8192 and still 5.4 times slower than one query a "
                           "block; 1.15x over rung 1 where the chip is full (an H100).",
                       .predicted = {.over = "0-one-query", .low = 10, .high = 20, .claim = "S3.9a"},
                       .limits =
                           {
                               .dtypes = {Dtype::f32, Dtype::bf16},
                               .head_dim_max = 8192,
                               .causal = true,
                               .compute_capability = 75,
                           },
                       .plan = plan_shared_keys<8>,
                       .launch = launch_shared_keys<8>,
                       .trace = trace_shared_keys};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
