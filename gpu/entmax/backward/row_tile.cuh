#pragma once
// 32 rows of one head, and where the row passes leave entries.

#include "gpu/entmax/backward/problem.h"

namespace splash::gpu::entmax::backward {

constexpr unsigned kWarp = 0xFFFFFFFFu;

struct RowTile {
  uint32_t head;   // over batch and query heads
  uint32_t query;  // the first one's

  __device__ RowTile(const Problem& p, int64_t tile)
      : head(static_cast<uint32_t>(tile) / p.tiles_a_head),
        query(static_cast<uint32_t>(tile) % p.tiles_a_head * kRowTile) {}

  __device__ bool has(const Problem& p, uint32_t in_tile) const { return query + in_tile < p.q_len; }
  __device__ uint32_t row(const Problem& p, uint32_t in_tile) const {
    return head * p.q_len + query + in_tile;
  }
};

// Puts an entry of a row among those of its key.
__device__ __forceinline__ void leave_to_key(const Problem& p, uint32_t key, const Entry& entry) {
  p.entries[p.key_blocks[key / kKeyBlock] + atomicSub(&p.key_places[key], 1u) - 1] = entry;
}

}  // namespace splash::gpu::entmax::backward
