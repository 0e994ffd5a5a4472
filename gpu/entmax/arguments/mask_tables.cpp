#include "gpu/entmax/arguments/mask_tables.h"

#include <algorithm>
#include <limits>

namespace splash::gpu::entmax {
namespace {

using Positions = std::vector<int64_t>;

bool fit_32_bits(const Positions& positions) {
  return std::all_of(positions.begin(), positions.end(), [](int64_t x) {
    return x >= std::numeric_limits<int32_t>::min() && x <= std::numeric_limits<int32_t>::max();
  });
}

}  // namespace

MaskTables::MaskTables(const AttentionSpec& spec) {
  const AttentionShape& s = spec.shape;
  const Mask& mask = spec.mask;
  for (const uint64_t word : mask.pairs) {
    values_.push_back(static_cast<int32_t>(word));
    values_.push_back(static_cast<int32_t>(word >> 32));
  }
  pairs_ = static_cast<int64_t>(values_.size());
  pair_tables_ = std::max(1, static_cast<int>(pairs_ / 2 / (s.q_len * pair_words(s.kv_len))));
  if (!mask.cu_seqlens_q.empty()) {
    Mask sequences = mask;  // positions do not change the range
    sequences.q_positions.clear();
    sequences.k_positions.clear();
    sequences.pairs.clear();
    for (int64_t query = 0; query < s.q_len; ++query) {
      const RowMask row = sequences.row(s, 0, 0, query);
      values_.push_back(static_cast<int32_t>(row.begin));
      values_.push_back(static_cast<int32_t>(row.end));
    }
    ranges_ = 2 * s.q_len;
  }
  if (mask.q_positions.empty()) return;
  q_positions_ = static_cast<int64_t>(mask.q_positions.size());
  k_positions_ = static_cast<int64_t>(mask.k_positions.size());
  q_tables_ = static_cast<int>(q_positions_ / s.q_len);
  k_tables_ = static_cast<int>(k_positions_ / s.kv_len);
  if (fit_32_bits(mask.q_positions) && fit_32_bits(mask.k_positions)) {
    values_.insert(values_.end(), mask.q_positions.begin(), mask.q_positions.end());
    values_.insert(values_.end(), mask.k_positions.begin(), mask.k_positions.end());
    return;
  }
  // A position's rank: how many distinct k_positions are at most it. k <= q exactly if rank(k) <= rank(q).
  Positions ranks = mask.k_positions;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  const auto add_ranks = [&](const Positions& positions) {
    for (const int64_t x : positions)
      values_.push_back(
          static_cast<int32_t>(std::upper_bound(ranks.begin(), ranks.end(), x) - ranks.begin()));
  };
  add_ranks(mask.q_positions);
  add_ranks(mask.k_positions);
}

DeviceMask MaskTables::at(const void* copy) const {
  const auto* const values = static_cast<const int32_t*>(copy);
  DeviceMask mask;
  if (pairs_ > 0) mask.pairs = reinterpret_cast<const uint64_t*>(values);
  mask.pair_tables = pair_tables_;
  if (ranges_ > 0) mask.ranges = values + pairs_;
  if (q_positions_ == 0) return mask;
  mask.q_positions = values + pairs_ + ranges_;
  mask.k_positions = mask.q_positions + q_positions_;
  mask.q_tables = q_tables_;
  mask.k_tables = k_tables_;
  return mask;
}

}  // namespace splash::gpu::entmax
