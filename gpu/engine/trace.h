#pragma once
// Helpers for the traces of kernel variants (Variant::trace): what a block reads and writes. Compiles without
// nvcc.

#include <vector>

#include "core/attention_spec.h"
#include "core/block_trace.h"
#include "core/dtype.h"

namespace splash::gpu {

// Rows of a call's tensors. `head` counts over all batches (batch * heads + head). Rows and columns out of
// bounds are skipped, as kernels skip them.
class TensorRows {
 public:
  struct Columns {
    int64_t first = 0, count = INT64_MAX;
  };

  TensorRows(const AttentionShape& shape, Dtype dtype)
      : q_len_(shape.q_len), kv_len_(shape.kv_len), head_dim_(shape.head_dim), element_(bytes_of(dtype)) {}

  void read_q(BlockTrace& trace, int64_t head, int64_t first, int64_t count, Columns columns) const {
    add(trace, Operand::q, false, head, q_len_, first, count, columns);
  }
  void read_k(BlockTrace& trace, int64_t kv_head, int64_t first, int64_t count, Columns columns) const {
    add(trace, Operand::k, false, kv_head, kv_len_, first, count, columns);
  }
  void read_v(BlockTrace& trace, int64_t kv_head, int64_t first, int64_t count, Columns columns) const {
    add(trace, Operand::v, false, kv_head, kv_len_, first, count, columns);
  }
  void write_out(BlockTrace& trace, int64_t head, int64_t first, int64_t count, Columns columns) const {
    add(trace, Operand::out, true, head, q_len_, first, count, columns);
  }
  void read_q(BlockTrace& trace, int64_t head, int64_t first, int64_t count) const {
    read_q(trace, head, first, count, {});
  }
  void read_k(BlockTrace& trace, int64_t kv_head, int64_t first, int64_t count) const {
    read_k(trace, kv_head, first, count, {});
  }
  void read_v(BlockTrace& trace, int64_t kv_head, int64_t first, int64_t count) const {
    read_v(trace, kv_head, first, count, {});
  }
  void write_out(BlockTrace& trace, int64_t head, int64_t first, int64_t count) const {
    write_out(trace, head, first, count, {});
  }

  // Reads one row of V for each query of [first, first + count). Every query reads at least one, because its
  // weights sum to 1. The data decides which; this takes the newest one that a causal query may see.
  void read_one_value_each(BlockTrace& trace, int64_t kv_head, int64_t first, int64_t count) const;

  int64_t row_bytes() const { return head_dim_ * element_; }

 private:
  void add(BlockTrace& trace, Operand operand, bool write, int64_t head, int64_t length, int64_t first,
           int64_t count, Columns columns) const;

  int64_t q_len_, kv_len_, head_dim_, element_;
};

// The key tiles that at least one query of a query tile sees.
class SeenTiles {
 public:
  SeenTiles(const AttentionSpec& spec, int64_t tile_q, int64_t tile_k)
      : spec_(spec), tile_q_(tile_q), tile_k_(tile_k) {}

  // Indices of the tiles, ascending. `head` counts over all batches. Exact, except for a mask that combines
  // positions with causal or packed: a tile may then be counted although no query passes all parts of the
  // mask, if each part alone lets some query through. The result is valid until the next call.
  const std::vector<int64_t>& of(int64_t head, int64_t first_query);

 private:
  const AttentionSpec& spec_;
  int64_t tile_q_, tile_k_;
  const int64_t* positions_ = nullptr;  // the positions that smallest_ describes
  std::vector<int64_t> smallest_{};     // smallest position in each key tile
  std::vector<int64_t> tiles_{};
};

}  // namespace splash::gpu
