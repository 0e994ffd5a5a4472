#include "cpu_ref/attention/select.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cpu_ref/attention/normalize_row.h"

namespace splash::cpu_ref {
namespace {

// Appends to `kept` the rising indices of the k largest of scores[begin, end); among equal scores the first.
template <class T>
void keep_largest(const std::vector<T>& scores, int64_t begin, int64_t end, int64_t k,
                  std::vector<int64_t>& kept) {
  const auto before = static_cast<int64_t>(kept.size());
  kept.resize(before + end - begin);
  const auto first = kept.begin() + before;
  std::iota(first, kept.end(), begin);
  if (end - begin <= k) return;
  std::nth_element(first, first + k, kept.end(), [&](int64_t a, int64_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  kept.resize(before + k);
  std::sort(kept.begin() + before, kept.end());
}

// Calls use(begin, end) for each run of the row's entries whose keys lie in one key block.
template <class T, class Use>
void for_each_block(const Row<T>& row, int64_t block, const Use& use) {
  for (int64_t begin = 0, end = 0; begin < row.size(); begin = end) {
    while (end < row.size() && row.keys[end] / block == row.keys[begin] / block) ++end;
    use(begin, end);
  }
}

template <class T>
std::vector<int64_t> significant_places(const AttentionSpec& spec, int64_t q_head, Solver solver,
                                        Row<T>& row) {
  const bool entmax = spec.normalizer.kind == NormalizerKind::entmax;
  const double threshold = entmax ? normalize_row(spec.normalizer, q_head, solver, row) : 0;
  const double to_z = entmax ? spec.normalizer.alpha_of(q_head) - 1 : 1;
  std::vector<int64_t> kept;
  for_each_block(row, spec.selection.block, [&](int64_t begin, int64_t end) {
    const double largest = to_z * *std::max_element(row.scores.begin() + begin, row.scores.begin() + end);
    if (!(largest > threshold + spec.selection.margin)) return;
    for (int64_t i = begin; i < end; ++i) kept.push_back(i);
  });
  return kept;
}

// Both lists rise.
template <class T>
std::vector<int64_t> shared_places(const Row<T>& row, const int32_t* keys, int64_t count) {
  std::vector<int64_t> kept;
  for (int64_t i = 0, place = 0; i < count && keys[i] >= 0; ++i) {
    while (place < row.size() && row.keys[place] < keys[i]) ++place;
    if (place < row.size() && row.keys[place] == keys[i]) kept.push_back(place);
  }
  return kept;
}

template <class T>
std::vector<int64_t> selected_places(const AttentionSpec& spec, const RowAddress& at, Solver solver,
                                     Row<T>& row) {
  const Selection& selection = spec.selection;
  std::vector<int64_t> kept;
  if (selection.kind == SelectionKind::top_k_row) {
    keep_largest(row.scores, 0, row.size(), selection.k_keep_of(at.q_head), kept);
  } else if (selection.kind == SelectionKind::top_k_block) {
    for_each_block(row, selection.block, [&](int64_t begin, int64_t end) {
      keep_largest(row.scores, begin, end, selection.k_keep, kept);
    });
  } else if (selection.kind == SelectionKind::shared_keys) {
    kept = shared_places(row, selection.keys_of(spec.shape, at.batch, at.q_head, at.query), selection.k_keep);
  } else {
    kept = significant_places(spec, at.q_head, solver, row);
  }
  return kept;
}

// Softmax has no threshold, so every block is significant.
bool keeps_everything(const AttentionSpec& spec) {
  return spec.selection.kind == SelectionKind::all ||
         (spec.selection.kind == SelectionKind::significant_blocks &&
          spec.normalizer.kind == NormalizerKind::softmax);
}

}  // namespace

template <class T>
void select_keys(const AttentionSpec& spec, const RowAddress& at, Solver solver, Row<T>& row) {
  const bool by_index =
      spec.selection.kind == SelectionKind::shared_keys;  // no score decides, so NaN elsewhere is harmless
  if ((row.poisoned && !by_index) || keeps_everything(spec)) return;
  const std::vector<int64_t> kept = selected_places(spec, at, solver, row);
  for (size_t i = 0; i < kept.size(); ++i) {
    row.keys[i] = row.keys[kept[i]];  // kept rises, so nothing is overwritten before it is read
    row.scores[i] = row.scores[kept[i]];
  }
  row.keys.resize(kept.size());
  row.scores.resize(kept.size());
  if (by_index) {
    row.poisoned = std::any_of(row.scores.begin(), row.scores.end(),
                               [](T score) { return !(score < std::numeric_limits<T>::infinity()); });
  }
}

template void select_keys(const AttentionSpec&, const RowAddress&, Solver, Row<float>&);
template void select_keys(const AttentionSpec&, const RowAddress&, Solver, Row<double>&);

}  // namespace splash::cpu_ref
