#pragma once
// 32 rows of one head.

#include "gpu/entmax/backward/problem.h"

namespace splash::gpu::entmax::backward {

constexpr unsigned kWarp = 0xFFFFFFFFu;

struct RowTile {
  uint32_t head;   // over batch and query heads
  uint32_t query;  // the first one's

  __device__ RowTile(const BackwardProblem& p, int64_t tile)
      : head(static_cast<uint32_t>(tile) / p.tiles_a_head),
        query(static_cast<uint32_t>(tile) % p.tiles_a_head * kRowTile) {}

  __device__ bool has(const BackwardProblem& p, uint32_t in_tile) const { return query + in_tile < p.q_len; }
  __device__ uint32_t row(const BackwardProblem& p, uint32_t in_tile) const {
    return head * p.q_len + query + in_tile;
  }
};

}  // namespace splash::gpu::entmax::backward
