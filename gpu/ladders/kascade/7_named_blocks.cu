// The document's blocks (source 001, section 3 and phase 2, S1.3: 15 to 25 %): (block_q, block_kv_sparse,
// block_kv_compute) = (512, 128, 128) as it stands, and (256, 128, 128), (512, 256, 256), (1024, 128, 128):
// rows that share the loaded keys x keys loaded at once x keys a product step. Rung 2 otherwise: loads,
// barrier, products, nothing overlapped.
//
// What a block is. In the document the rows of a block have one sparse list. Here a list belongs to a tile of
// Selection::block tokens x the query heads of a key head, and a block is (part of) one tile: 1024 rows want
// 256 tokens x 4 heads, which is what experiments/ladders/kascade-blocks.toml selects. Over the tiles of 32
// tokens of the other rungs such a block would span 8 lists; their union, of 10 % of the keys each drawn
// apart, is 57 % of the keys (of four 34 %), 5.7 times the products: not built. A smaller tile leaves rows of
// its block empty.
//
// What fits, head_dim 128, 16 bits. O in fp32 takes 512 bytes a row: of 256 rows half an SM's 64K registers,
// of 512 all, of 1024 twice as many. Shared memory: a row of Q 272 bytes, a key with its value 548, so 256
// rows x 128 keys 137 KiB, 512 x 128 205 KiB, 512 x 256 273 KiB, 1024 x 128 341 KiB, before any O that
// registers do not hold (128 KiB for 256 rows), of 227 KiB on sm_90, 163 on sm_80, 99 on sm_86 and sm_89. On
// one SM thus only (256, 128, 128): eight warps, two slices of 128 rows one after the other against the one
// tile, O in 128 registers a thread beside 64 of scores. The others are clusters (sm_90): 2 x 256 rows, 4 x
// 256 rows, and 4 x 128 rows, whose 128 registers of scores hold 256 keys. Every block gathers its share of a
// tile and stores it into the shared memory of all: memory is asked once a cluster. So all four are whole on
// sm_90; sm_80 could hold (256, 128, 128) alone, and the other three only cut down to it. ptxas for sm_90a:
// 255 registers, 8 to 88 bytes spilled a thread.
//
// Predicted: rung 2 takes 10.2 us a 128 x 128 tile (8.42 ms / 825 tiles an SM at 32k), some 4 of them loads
// (rung 4, which hides them, takes 5.1). Two slices take 12.4 us of work, beside which the loads are 4 us for
// 256 rows, 2 for a cluster of 512 and 1 for one of 1024; a cluster adds two barriers (0.5 us each, their
// release is a membar) and 32 or 48 KiB stored to other SMs (0.5, 0.8 us). A 128 x 128 tile thus costs 8.2,
// 8.0 and 7.6 us; 256 keys a step, with half the barriers for 128 rows, 8.1. In all 6.8, 6.6, 6.3 and 6.7 ms:
// the best gains 5 % over (512, 128, 128), not 15.

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
