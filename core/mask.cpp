#include "core/mask.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"

namespace splash {
namespace {

using Indices = std::vector<int64_t>;

void require_positions(const char* name, const Indices& positions, int64_t length,
                       const AttentionShape& shape) {
  const auto size = static_cast<int64_t>(positions.size());
  if (size == length || size == shape.batch * length || size == shape.batch * shape.q_heads * length) return;
  throw InvalidArgument(fmt::format(
      "{} has {} entries; allowed: {} (one for each place), {} (batch x places) or {} (batch x q_heads x "
      "places)",
      name, size, length, shape.batch * length, shape.batch * shape.q_heads * length));
}

void require_cu_seqlens(const char* name, const Indices& cu, int64_t length) {
  const bool rising = std::is_sorted(cu.begin(), cu.end());
  if (cu.size() >= 2 && cu.front() == 0 && cu.back() == length && rising) return;
  throw InvalidArgument(
      fmt::format("{} must rise from 0 to {} (the length), with one entry more than there are "
                  "sequences",
                  name, length));
}

void require_both(const char* a_name, const Indices& a, const char* b_name, const Indices& b) {
  if (a.empty() == b.empty()) return;
  throw InvalidArgument(fmt::format("only {} is given; {} is needed too", a.empty() ? b_name : a_name,
                                    a.empty() ? a_name : b_name));
}

// The row of a [length], [batch, length] or [batch, q_heads, length] table.
template <class T>
const T* table_row(const std::vector<T>& table, int64_t length, const AttentionShape& shape, int64_t b,
                   int64_t h) {
  const auto size = static_cast<int64_t>(table.size());
  if (size == length) return table.data();
  if (size == shape.batch * length) return table.data() + b * length;
  return table.data() + (b * shape.q_heads + h) * length;
}

}  // namespace

int64_t RowMask::count() const {
  if (is_range()) return std::max<int64_t>(0, end - begin);
  int64_t n = 0;
  for (int64_t j = begin; j < end; ++j) n += visible(j) ? 1 : 0;
  return n;
}

namespace {

void require_pairs(const std::vector<uint64_t>& pairs, const AttentionShape& shape) {
  const int64_t words = pair_words(shape.kv_len), table = shape.q_len * words,
                last = shape.kv_len % kKeysAWord;
  const auto size = static_cast<int64_t>(pairs.size());
  if (size != table && size != shape.batch * table && size != shape.batch * shape.q_heads * table)
    throw InvalidArgument(fmt::format(
        "pairs has {} words; allowed: {} (q_len x words), or batch or batch x q_heads times as many", size,
        table));
  if (last == 0) return;
  for (int64_t i = words - 1; i < size; i += words)
    if (pairs[static_cast<size_t>(i)] >> last != 0)
      throw InvalidArgument("pairs has a bit past the last key; allowed: bits of keys alone");
}

}  // namespace

void Mask::validate(const AttentionShape& shape) const {
  require_both("q_positions", q_positions, "k_positions", k_positions);
  require_both("cu_seqlens_q", cu_seqlens_q, "cu_seqlens_k", cu_seqlens_k);
  if (window < 0)
    throw InvalidArgument(fmt::format("window is {}; it must be at least 1, or 0 for no window", window));
  if (!q_positions.empty()) {
    require_positions("q_positions", q_positions, shape.q_len, shape);
    require_positions("k_positions", k_positions, shape.kv_len, shape);
  }
  if (!pairs.empty()) require_pairs(pairs, shape);
  if (!cu_seqlens_q.empty()) {
    require_cu_seqlens("cu_seqlens_q", cu_seqlens_q, shape.q_len);
    require_cu_seqlens("cu_seqlens_k", cu_seqlens_k, shape.kv_len);
    if (cu_seqlens_q.size() != cu_seqlens_k.size()) {
      throw InvalidArgument(
          fmt::format("cu_seqlens_q has {} entries and cu_seqlens_k {}; they must have equally many",
                      cu_seqlens_q.size(), cu_seqlens_k.size()));
    }
  }
}

bool Mask::same_for_all_heads(const AttentionShape& shape) const {
  return static_cast<int64_t>(q_positions.size()) <= shape.q_len &&
         static_cast<int64_t>(k_positions.size()) <= shape.kv_len &&
         static_cast<int64_t>(pairs.size()) <= shape.q_len * pair_words(shape.kv_len);
}

RowMask Mask::row(const AttentionShape& shape, int64_t batch, int64_t q_head, int64_t query) const {
  RowMask row{.begin = 0, .end = shape.kv_len};
  int64_t q_end = shape.q_len;
  if (!cu_seqlens_q.empty()) {
    const auto next = std::upper_bound(cu_seqlens_q.begin(), cu_seqlens_q.end(), query);
    const auto s = next - cu_seqlens_q.begin() - 1;
    q_end = cu_seqlens_q[s + 1];
    row.begin = cu_seqlens_k[s];
    row.end = cu_seqlens_k[s + 1];
  }
  // A query is as far from its sequence's end as the key at its place, so the last query is at the last key.
  const int64_t first = row.begin, place = row.end - (q_end - query);
  if (has_window(shape)) {
    row.begin = std::max(first, place - window + 1);
    row.end = std::max(first, std::min(row.end, place + window));
  }
  if (causal) row.end = std::max(first, std::min(row.end, place + 1));
  if (!q_positions.empty()) {
    row.k_positions = table_row(k_positions, shape.kv_len, shape, batch, q_head);
    row.q_position = table_row(q_positions, shape.q_len, shape, batch, q_head)[query];
  }
  if (!pairs.empty()) {
    const int64_t words = pair_words(shape.kv_len);
    row.pairs = table_row(pairs, shape.q_len * words, shape, batch, q_head) + query * words;
  }
  return row;
}

namespace {

// Visible pairs of one head. If only positions decide, the order of keys does not matter, so sorting them
// gives O(N log N).
int64_t visible_pairs_of_head(const AttentionShape& shape, const Mask& mask, int64_t b, int64_t h) {
  const bool positions_alone = !mask.q_positions.empty() && !mask.causal && mask.window == 0 &&
                               mask.cu_seqlens_q.empty() && mask.pairs.empty();
  Indices sorted;
  if (positions_alone) {
    const int64_t* const k_positions = table_row(mask.k_positions, shape.kv_len, shape, b, h);
    sorted.assign(k_positions, k_positions + shape.kv_len);
    std::sort(sorted.begin(), sorted.end());
  }
  int64_t pairs = 0;
  for (int64_t i = 0; i < shape.q_len; ++i) {
    const RowMask row = mask.row(shape, b, h, i);
    pairs += positions_alone ? std::upper_bound(sorted.begin(), sorted.end(), row.q_position) - sorted.begin()
                             : row.count();
  }
  return pairs;
}

}  // namespace

int64_t visible_pairs(const AttentionShape& shape, const Mask& mask) {
  if (mask.same_for_all_heads(shape))
    return shape.batch * shape.q_heads * visible_pairs_of_head(shape, mask, 0, 0);
  int64_t pairs = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.q_heads; ++h) pairs += visible_pairs_of_head(shape, mask, b, h);
  }
  return pairs;
}

}  // namespace splash
