#pragma once
// Which keys a query sees.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/pair_words.h"
#include "core/shape.h"

namespace splash {

// The visible keys of one query row: the keys j in [begin, end) with k_positions[j] <= q_position whose bit
// is set in pairs; what is null hides nothing. The row points into its Mask, which must outlive it.
struct RowMask {
  int64_t begin = 0;
  int64_t end = 0;
  const int64_t* k_positions = nullptr;
  int64_t q_position = 0;
  const uint64_t* pairs = nullptr;

  bool visible(int64_t key) const {
    return key >= begin && key < end && (k_positions == nullptr || k_positions[key] <= q_position) &&
           pair_bits(pairs, key, 1) != 0;
  }
  // Of n keys that lie in one word of pairs, by these alone.
  bool sees_some(int64_t first_key, int64_t n) const { return pair_bits(pairs, first_key, n) != 0; }
  bool sees_whole(int64_t first_key, int64_t n) const {
    return pair_bits(pairs, first_key, n) == pair_bits(nullptr, first_key, n);
  }
  bool is_range() const { return k_positions == nullptr && pairs == nullptr; }  // all of [begin, end)
  int64_t count() const;                                                        // number of visible keys
};

// The conjunction of its parts; empty parts hide nothing.
struct Mask {
  // Query i sees key j iff j <= i + kv_len - q_len: the last query sees the last key (bottom-right alignment,
  // as FlashAttention >= 2.1). With packed sequences the alignment holds inside each sequence.
  bool causal = false;

  // A sliding window, as transformers counts. With p = i + kv_len - q_len query i sees the keys j with
  // p - window < j <= p where causal is set (flash-attention's window_size of (window - 1, 0)), and those
  // with p - window < j < p + window where it is not ((window - 1, window - 1)); with packed sequences so
  // inside each. 0: no window.
  int64_t window = 0;

  // Query i sees key j iff k_positions[j] <= q_positions[i]. Both or neither; each [length],
  // [batch, length] or [batch, q_heads, length].
  std::vector<int64_t> q_positions{}, k_positions{};

  // Packed sequences: sequence s holds queries [cu_seqlens_q[s], cu_seqlens_q[s+1]) and keys likewise;
  // a query sees keys of its own sequence only. Both or neither; rising from 0 to q_len and kv_len.
  std::vector<int64_t> cu_seqlens_q{}, cu_seqlens_k{};

  // Query i sees key j iff its bit is set (core/pair_words.h): [q_len, words], [batch, q_len, words] or
  // [batch, q_heads, q_len, words].
  std::vector<uint64_t> pairs{};

  // Throws InvalidArgument if a part does not fit the shape.
  void validate(const AttentionShape& shape) const;

  // Whether the window hides a key of these shapes.
  bool has_window(const AttentionShape& shape) const {
    return window > 0 && window < (causal ? shape.kv_len : std::max(shape.q_len, shape.kv_len));
  }

  // Whether every batch entry and head sees the same pairs, because no table distinguishes them.
  bool same_for_all_heads(const AttentionShape& shape) const;

  // Takes O(log sequences). The mask must have passed validate().
  RowMask row(const AttentionShape& shape, int64_t batch, int64_t q_head, int64_t query) const;
};

// Number of visible (query, key) pairs over all batch entries and query heads.
int64_t visible_pairs(const AttentionShape& shape, const Mask& mask);

}  // namespace splash
