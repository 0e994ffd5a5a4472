#include "gpu/engine/trace.h"

#include <algorithm>
#include <limits>

#include "core/round.h"

namespace splash::gpu {

void TensorRows::add(BlockTrace& trace, Operand operand, bool write, int64_t head, int64_t length,
                     int64_t first, int64_t count, Columns columns) const {
  const int64_t rows = std::min(length - first, count),
                width = std::min(head_dim_ - columns.first, columns.count);
  if (rows <= 0 || width <= 0) return;
  const int64_t offset = ((head * length + first) * head_dim_ + columns.first) * element_;
  const bool whole = width == head_dim_;
  const int64_t bytes = width * element_ * (whole ? rows : 1);
  if (write) {
    trace.write(operand, offset, bytes, whole ? 1 : rows, row_bytes());
  } else {
    trace.read(operand, offset, bytes, whole ? 1 : rows, row_bytes());
  }
}

void TensorRows::read_one_value_each(BlockTrace& trace, int64_t kv_head, int64_t first, int64_t count) const {
  const int64_t shift = kv_len_ - q_len_, end = std::min(first + count, q_len_);
  // If there are fewer keys than queries, the key's index wraps around.
  for (int64_t query = first; query < end;) {
    const int64_t key = (query + shift % kv_len_ + kv_len_) % kv_len_,
                  run = std::min(end - query, kv_len_ - key);
    read_v(trace, kv_head, key, run);
    query += run;
  }
}

const std::vector<int64_t>& SeenTiles::of(int64_t head, int64_t first_query) {
  const AttentionShape& shape = spec_.shape;
  int64_t begin = shape.kv_len, end = 0, position = std::numeric_limits<int64_t>::min();
  const int64_t* positions = nullptr;
  for (int64_t i = first_query; i < std::min(first_query + tile_q_, shape.q_len); ++i) {
    const RowMask row = spec_.mask.row(shape, head / shape.q_heads, head % shape.q_heads, i);
    if (row.begin >= row.end) continue;
    begin = std::min(begin, row.begin);
    end = std::max(end, row.end);
    position = std::max(position, row.q_position);
    positions = row.k_positions;
  }
  tiles_.clear();
  if (begin >= end) return tiles_;
  if (positions != nullptr && positions != positions_) {
    positions_ = positions;
    smallest_.clear();
    for (int64_t k = 0; k < shape.kv_len; k += tile_k_)
      smallest_.push_back(*std::min_element(positions + k, positions + std::min(k + tile_k_, shape.kv_len)));
  }
  for (int64_t tile = begin / tile_k_; tile < ceil_div(end, tile_k_); ++tile) {
    if (positions == nullptr || smallest_[static_cast<std::size_t>(tile)] <= position) tiles_.push_back(tile);
  }
  return tiles_;
}

}  // namespace splash::gpu
