#pragma once
// What kernels that walk over tiles of keys ask of L2, block by block as a GPU starts them, and what of it
// DRAM has to deliver.

#include <string>

#include "analysis/cache/cache.h"
#include "analysis/occupancy.h"

namespace splash::analysis {

// How blocks are numbered; they start in that order.
enum class BlockOrder {
  by_head,        // the tiles of a head, then those of the next
  longest_first,  // the last tile of every head, then the tile before it of every head
};

// Each block takes tile_q queries of a head, and for each tile of keys that one of them sees, its K and V.
// All rows are contiguous, heads follow one another.
struct TileWalk {
  int64_t heads = 1, group = 1;  // query heads of all batch entries; of them `group` to a key head
  int64_t q_len = 1, kv_len = 1;
  int64_t row_bytes = 128;  // of one row of Q, K, V or O
  int64_t tile_q = 64, tile_k = 64;
  bool causal = false;  // the last query sees all keys
  BlockOrder order = BlockOrder::by_head;

  int64_t blocks() const;
  int64_t key_tiles(int64_t query_tile) const;
  // Throws InvalidArgument where a number is not positive, or heads are no multiple of the group.
  void validate() const;
};

// Runs the walk: as many blocks at a time as the multiprocessors hold, all at one pace, a tile of keys a
// turn; where one ends, the next starts. DRAM's share is that of a first run, on an empty L2.
MemoryTraffic simulate(const TileWalk& walk, int multiprocessors, int blocks_each, const L2Size& l2);

// What a block holds on its chip: its queries and `stages` tiles of keys and values, bytes.
int64_t working_set(const TileWalk& walk, int stages);
// K and V that the blocks of a full wave read, each byte once.
int64_t wave_working_set(const TileWalk& walk, int64_t resident_blocks);

// The largest kv_len (= q_len), in powers of two up to 2^24, at which a wave's K and V stay in L2, so that
// each byte comes from DRAM once; 0 where none does. What both partitions read lies there twice.
int64_t longest_in_l2(TileWalk walk, int64_t resident_blocks, const L2Size& l2);

}  // namespace splash::analysis
