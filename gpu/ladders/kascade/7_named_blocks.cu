// The document's blocks (source 001, section 3 and phase 2: 15 to 25 %, claim S1.3). A block is named by
// (block_q, block_kv_sparse, block_kv_compute): rows that share the loaded keys, keys loaded at once, keys
// per product step. The document has (512, 128, 128) and proposes (256, 128, 128), (512, 256, 256) and (1024,
// 128, 128). The rest is rung 2: loads, barrier, products, nothing overlapped.
//
// What a block is. In the document the rows of a block have one sparse list. Here a list belongs to a tile of
// Selection::block tokens x the query heads of one key head, and a block is (part of) one tile. 1024 rows
// therefore need 256 tokens x 4 heads, which experiments/ladders/kascade-blocks.toml selects. With the
// 32-token tiles of the other rungs, such a block would span 8 lists. If each list has 10 % of the keys,
// drawn independently, the union of 8 lists is 57 % of the keys (of 4 lists: 34 %), which means 5.7 times the
// products. That is not built. A tile smaller than the block leaves rows of the block empty.
//
// What fits, at head_dim 128 and 16 bits. O in fp32 takes 512 bytes per row: 256 rows fill half of an SM's
// 64K registers, 512 rows all of them, and 1024 rows need twice as many. In shared memory a row of Q takes
// 272 bytes and a key with its value 548. So (256, 128, 128) takes 137 KiB, (512, 128, 128) 205, (512, 256,
// 256) 273 and (1024, 128, 128) 341, plus whatever part of O the registers do not hold (128 KiB per 256
// rows). sm_90 has 227 KiB, sm_80 163, sm_86 and sm_89 99. On one SM, therefore, only (256, 128, 128) fits:
// eight warps multiply two slices of 128 rows, one after the other, by the same tile, with 128 registers of O
// and 64 of scores per thread. The other blocks are clusters (sm_90): 2 x 256 rows, 4 x 256 rows, and 4 x 128
// rows, whose 128 registers of scores hold 256 keys. Each thread block gathers its share of a tile and stores
// it into the shared memory of all, so a cluster reads memory once. sm_90 thus runs all four whole; sm_80
// could run (256, 128, 128) alone, and the other three only cut down to it. ptxas for sm_90a: 255 registers,
// 8 to 88 bytes spilled per thread.
//
// Predicted: rung 2 takes 10.2 us per 128 x 128 tile (8.42 ms / 825 tiles per SM at 32k), some 4 of them for
// loads (rung 4, which hides the loads, takes 5.1). Two slices take 12.4 us of work; the loads add 4 us for
// 256 rows, 2 us for a cluster of 512 and 1 us for one of 1024. A cluster also adds two barriers (0.5 us
// each, because their release is a membar) and 32 or 48 KiB stored to other SMs (0.5 or 0.8 us). A 128 x 128
// tile thus costs 8.2, 8.0 and 7.6 us. With 256 keys per step, and so half the barriers for 128 rows, it
// costs 8.1. In all 6.8, 6.6, 6.3 and 6.7 ms: the best gains 5 % over (512, 128, 128), not 15.

#include "gpu/ladders/kascade/blocks.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

template <class Block>
Variant variant_of(const char* name, const Prediction& predicted, const char* finding) {
  return {
      .ladder = "kascade",
      .rung = 7,
      .name = name,
      .idea = "the document's block, rows x keys gathered at once x keys a product step, rung 2 otherwise",
      .finding = finding,
      .predicted = predicted,
      .limits = limits_of({.compute_capability = 90, .selection_blocks = {64, 128, 256, 512}}),
      .plan = plan_block<Block>,
      .launch = launch_block<Block>,
      .trace = trace_block<Block>};
}

const Prediction kOverPresent{.over = "7-block-512x128x128", .low = 1.15, .high = 1.25, .claim = "S1.3"};
const Variant k512 = variant_of<NamedBlock<2, 128, 2>>("block-512x128x128", {},
                                                       "5.18 ms at 32k with lists of 256 tokens (an H100)."),
              k256 = variant_of<NamedBlock<2, 128, 1>>(
                  "block-256x128x128", kOverPresent,
                  "6.06 ms at 32k where (512, 128, 128) takes 5.18 (an H100): 15 % slower."),
              k512x256 = variant_of<NamedBlock<1, 256, 4>>(
                  "block-512x256x256", kOverPresent,
                  "6.11 ms at 32k where (512, 128, 128) takes 5.18 (an H100): 15 % slower."),
              k1024 = variant_of<NamedBlock<2, 128, 4>>(
                  "block-1024x128x128", kOverPresent,
                  "5.14 ms at 32k where (512, 128, 128) takes 5.18 (an H100): 1 % faster, not 15.");
const VariantRegistration kRegistrations[] = {VariantRegistration(k512), VariantRegistration(k256),
                                              VariantRegistration(k512x256), VariantRegistration(k1024)};

}  // namespace
}  // namespace splash::gpu
