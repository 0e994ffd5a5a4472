#include "cpu_ref/attention/tile_top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "cpu_ref/attention/row.h"

namespace splash::cpu_ref {
namespace {

void check(const AttentionSpec& spec, const TensorView<const double>& q, const TensorView<const double>& k,
           const TileTopKOptions& options) {
  require_inputs(spec, q, k, k);
  if (spec.normalizer.kind != NormalizerKind::softmax) {
    throw InvalidArgument(
        fmt::format("keys of a tile are chosen by softmax, not by {}", to_string(spec.normalizer.kind)));
  }
  if (options.tile < 1) throw InvalidArgument(fmt::format("tile is {}; it must be at least 1", options.tile));
  if (options.k < 0)
    throw InvalidArgument(fmt::format("k is {}; it must be at least 1, or 0 for the share", options.k));
  if (options.k == 0 && !(options.share > 0 && options.share <= 1))
    throw InvalidArgument(fmt::format("share is {}; it must be above 0 and at most 1", options.share));
}

int64_t keys_kept(const TileTopKOptions& options, int64_t visible) {
  return options.k > 0 ? std::min(options.k, visible)
                       : static_cast<int64_t>(std::ceil(options.share * static_cast<double>(visible)));
}

// Adds the row's probabilities to `pooled`.
void add_row(const Row<double>& row, std::vector<double>& pooled) {
  if (row.size() == 0) return;
  const double largest = *std::max_element(row.scores.begin(), row.scores.end());
  double sum = 0;
  for (const double score : row.scores) sum += std::exp(score - largest);
  for (int64_t i = 0; i < row.size(); ++i) {
    pooled[row.keys[i]] +=
        row.poisoned ? std::numeric_limits<double>::quiet_NaN() : std::exp(row.scores[i] - largest) / sum;
  }
}

// The k largest of the first `visible` keys, rising, padded with -1.
std::vector<int32_t> largest_keys(const std::vector<double>& pooled, int64_t visible, int64_t k,
                                  int64_t k_keep) {
  std::vector<int32_t> keys(visible);
  std::iota(keys.begin(), keys.end(), 0);
  const auto order = [&](int32_t key) {
    return std::isnan(pooled[key]) ? std::numeric_limits<double>::infinity() : pooled[key];
  };
  std::stable_sort(keys.begin(), keys.end(), [&](int32_t a, int32_t b) { return order(a) > order(b); });
  keys.resize(k);
  std::sort(keys.begin(), keys.end());
  keys.resize(k_keep, -1);
  return keys;
}

}  // namespace

TileTopK tile_top_k(const AttentionSpec& spec, TensorView<const double> q, TensorView<const double> k,
                    const TileTopKOptions& options) {
  check(spec, q, k, options);
  const AttentionShape& s = spec.shape;
  TileTopK result;
  Selection& selection = result.selection;
  selection = {.kind = SelectionKind::shared_keys,
               .k_keep = std::max<int64_t>(1, keys_kept(options, s.kv_len)),
               .block = options.tile};
  RowScorer<double> scores(spec, q, k);
  Row<double> row;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
      for (int64_t begin = 0; begin < s.q_len; begin += options.tile) {
        const int64_t end = std::min(begin + options.tile, s.q_len), first_head = kv_head * s.group();
        std::vector<double> pooled(s.kv_len);
        for (int64_t h = first_head; h < first_head + s.group(); ++h) {
          for (int64_t i = begin; i < end; ++i) {
            scores({b, h, i}, spec.mask.row(s, b, h, i), row);
            add_row(row, pooled);
          }
        }
        const int64_t visible = std::max<int64_t>(0, spec.mask.row(s, b, first_head, end - 1).end);
        const auto keys = largest_keys(pooled, visible, keys_kept(options, visible), selection.k_keep);
        selection.keys.insert(selection.keys.end(), keys.begin(), keys.end());
        result.pooled.insert(result.pooled.end(), pooled.begin(), pooled.end());
      }
    }
  }
  return result;
}

}  // namespace splash::cpu_ref
