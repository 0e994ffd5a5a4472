// Rung 1, source 003's main proposal (claim S3.9): sixteen queries per block share K and V, with online
// softmax over tiles of 64 keys. K's tile lies in shared memory. A value of V is read once into a register
// and serves all sixteen queries. The document forgets that neither Q's tile nor the outputs fit: sixteen
// rows of head_dim 8192 are 512 KB, more than a multiprocessor's registers or shared memory. So Q passes
// through shared memory in chunks of head_dim. If there is more than one tile of keys, the outputs are
// accumulated in memory (fp32, L2).
//
// Arithmetic at head_dim 8192, 4 heads x 16 x 16, fp32: K and V leave L2 once instead of 16 times (4 MB, not
// 64), but only 4 blocks are left for 132 multiprocessors. Each moves 2 MB. One multiprocessor can receive
// some 60 bytes per cycle, so that takes 35 000 cycles = 20 us if loads are always in flight. With a barrier
// on both sides of each of 256 chunks of 32 dims (~1000 cycles each) it takes 250 000 cycles = 140 us. So
// this rung is slower than rung 0 here, whatever the traffic says.

#include "gpu/ladders/large_dims/shared_keys.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 1,
    .name = "sixteen-queries",
    .idea = "sixteen queries a block share tiles of K and V, with online softmax",
    .finding =
        "7.7 times slower than rung 0 at 8192 (492 us), where 4 blocks are left, each waiting at two "
        "barriers a chunk; with 1024 blocks (B 8, H 4, 512 x 512, d 2048) the saved traffic gains 1.2 times.",
    .predicted = {.over = "0-one-query", .low = 10, .high = 20, .claim = "S3.9a"},
    .limits =
        {
            .dtypes = {Dtype::f32, Dtype::bf16},
            .head_dim_max = 8192,
            .causal = true,
            .compute_capability = 75,
        },
    .plan = plan_shared_keys<16>,
    .launch = launch_shared_keys<16>,
    .trace = trace_shared_keys};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
