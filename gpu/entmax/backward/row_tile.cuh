#pragma once
// 32 rows of one head.

#include "gpu/entmax/backward/problem.h"

namespace splash::gpu::entmax::backward {

constexpr unsigned kWarp = 0xFFFFFFFFu;

struct RowTile {
  uint32_t head;       // over batch and query heads
  uint32_t query;      // the first one's
  uint32_t first_key;  // of the head's keys, over batch and heads
  uint32_t of_key;     // the first row's number among those that may attend to these keys

  __device__ RowTile(const BackwardProblem& p, int64_t tile)
      : head(p.by_tiles_a_head.quotient(static_cast<uint32_t>(tile))),
        query((static_cast<uint32_t>(tile) - head * p.tiles_a_head) * kRowTile) {
    const uint32_t key_head = p.by_group.quotient(head);
    first_key = key_head * p.kv_len;
    of_key = (head - key_head * p.group) * p.q_len + query;
  }

  __device__ bool has(const BackwardProblem& p, uint32_t in_tile) const { return query + in_tile < p.q_len; }
  __device__ uint32_t row(const BackwardProblem& p, uint32_t in_tile) const {
    return head * p.q_len + query + in_tile;
  }
};

}  // namespace splash::gpu::entmax::backward
