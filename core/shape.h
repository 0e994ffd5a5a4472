#pragma once
// The shape of one attention problem.

#include <cstdint>
#include <string>

namespace splash {

// Q is [batch, q_heads, q_len, head_dim]; K and V are [batch, kv_heads, kv_len, head_dim].
// Query head h reads key head h / (q_heads / kv_heads) (grouped-query attention, Ainslie et al. 2023).
struct AttentionShape {
  int64_t batch = 1;
  int64_t q_heads = 1;
  int64_t kv_heads = 1;
  int64_t q_len = 1;
  int64_t kv_len = 1;
  int64_t head_dim = 64;

  int64_t group() const { return q_heads / kv_heads; }  // query heads per key head
  int64_t kv_head_of(int64_t q_head) const { return q_head / group(); }
  int64_t rows() const { return batch * q_heads * q_len; }  // softmax rows

  // Throws InvalidArgument unless every extent is >= 1, kv_len < 2^31, q_heads is a multiple of kv_heads, and
  // the elements of each tensor and the (query, key) pairs are at most 2^56, so that products do not
  // overflow.
  void validate() const;

  bool operator==(const AttentionShape&) const = default;
};

// "B 1, H 8/8, N 2048/2048, d 64" (query/key heads and lengths).
std::string to_string(const AttentionShape& shape);

}  // namespace splash
