#pragma once
// The loop that all plain forwards share. They differ in how one row of scores becomes probabilities.

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/parallel.h"
#include "core/round.h"
#include "cpu_ref/attention/forward.h"
#include "cpu_ref/attention/row.h"

namespace splash::cpu_ref {

// Throws InvalidArgument if the block map's tiles have no extent.
inline void require_options(const ForwardOptions& options) {
  if (options.map_block >= 1) return;
  throw InvalidArgument(fmt::format("map_block is {}; it must be at least 1", options.map_block));
}

// Raises the tiles' states. Rows of one tile may belong to different threads. Bits are only ever set, so the
// order of threads does not matter; finish() turns 3 (inactive | active) into `active`.
class BlockMapBuilder {
 public:
  BlockMapBuilder(const AttentionShape& shape, int64_t block) : shape_(shape) {
    map_.block = block;
    map_.q_blocks = ceil_div(shape.q_len, block);
    map_.k_blocks = ceil_div(shape.kv_len, block);
    map_.state.assign(shape.batch * shape.q_heads * map_.q_blocks * map_.k_blocks, BlockMap::hidden);
  }

  template <class T>
  void note(const RowAddress& at, const RowMask& mask, const Row<T>& row) {
    const int64_t q_block = at.query / map_.block;
    uint8_t* tiles =
        &map_.state[((at.batch * shape_.q_heads + at.q_head) * map_.q_blocks + q_block) * map_.k_blocks];
    for (int64_t begin = mask.begin, end = begin; begin < mask.end; begin = end) {
      const int64_t k_block = begin / map_.block;
      end = std::min(mask.end, (k_block + 1) * map_.block);
      std::atomic_ref<uint8_t> tile(tiles[k_block]);
      for (int64_t j = begin; j < end && tile.load(std::memory_order_relaxed) == BlockMap::hidden; ++j) {
        if (mask.visible(j)) tile.fetch_or(BlockMap::inactive, std::memory_order_relaxed);
      }
    }
    for (int64_t i = 0; i < row.size(); ++i) {
      if (!(row.p[i] > 0)) continue;
      std::atomic_ref<uint8_t> tile(tiles[row.keys[i] / map_.block]);
      if ((tile.load(std::memory_order_relaxed) & BlockMap::active) == 0) {
        tile.fetch_or(BlockMap::active, std::memory_order_relaxed);
      }
    }
  }

  BlockMap finish() && {
    for (uint8_t& s : map_.state) s = std::min<uint8_t>(s, BlockMap::active);
    return std::move(map_);
  }

 private:
  AttentionShape shape_;
  BlockMap map_;
};

// Keeps the non-zero probabilities of single rows until all rows are known.
template <class T>
struct RowSupport {
  std::vector<int32_t> columns;
  std::vector<T> values;
};

template <class T>
SparseProbabilities<T> join_rows(const std::vector<RowSupport<T>>& rows) {
  SparseProbabilities<T> joined;
  joined.row_offsets.reserve(rows.size() + 1);
  joined.row_offsets.push_back(0);
  for (const RowSupport<T>& row : rows) {
    joined.columns.insert(joined.columns.end(), row.columns.begin(), row.columns.end());
    joined.values.insert(joined.values.end(), row.values.begin(), row.values.end());
    joined.row_offsets.push_back(static_cast<int64_t>(joined.columns.size()));
  }
  return joined;
}

// out = sum p v over the keys that have weight, so that NaN or inf in another value does no harm.
template <class T>
void weigh_values(const AttentionSpec& spec, const RowAddress& at, Row<T>& row,
                  typename TensorView<const T>::Map values, T* out) {
  row.sum.setZero(values.cols());
  for_each_weight(spec, at, row, [&](int64_t i) {
    row.sum += double{row.p[i]} * values.row(row.keys[i]).template cast<double>();
  });
  row.sum *= dropout_factor<double>(spec);
  Eigen::Map<Eigen::Matrix<T, 1, Eigen::Dynamic>>(out, values.cols()) = row.sum.template cast<T>();
}

// Inputs must have been checked. normalize(address, row) fills row.p from the scores of the visible keys, may
// drop keys, and returns tau.
template <class T, class Normalize>
ForwardResult<T> forward_rows(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k,
                              TensorView<const T> v, const ForwardOptions& options,
                              const Normalize& normalize) {
  const AttentionShape& shape = spec.shape;
  ForwardResult<T> result;
  result.out = Tensor<T>(shape.batch, shape.q_heads, shape.q_len, shape.head_dim);
  result.tau.resize(shape.rows());
  result.support.resize(shape.rows());
  BlockMapBuilder blocks(shape, options.map_block);
  std::vector<RowSupport<T>> supports(options.keep_probabilities ? shape.rows() : 0);

  struct Mine {
    RowScorer<T> score;
    Row<T> row;
  };
  const auto mine = [&] { return Mine{RowScorer<T>(spec, q, k), {}}; };
  parallel_for_with(shape.rows(), 1, mine, [&](Mine& own, int64_t r) {
    auto& [score, row] = own;
    const RowAddress at = row_address(shape, r);
    const RowMask mask = spec.mask.row(shape, at.batch, at.q_head, at.query);
    score(at, mask, row);
    result.tau[r] = normalize(at, row);
    result.support[r] = std::ranges::count_if(row.p, [](T p) { return p > 0; });
    weigh_values(spec, at, row, v.matrix(at.batch, shape.kv_head_of(at.q_head)),
                 result.out.row(at.batch, at.q_head, at.query));
    blocks.note(at, mask, row);
    if (!options.keep_probabilities) return;
    for (int64_t i = 0; i < row.size(); ++i) {
      if (!(row.p[i] > 0)) continue;
      supports[r].columns.push_back(static_cast<int32_t>(row.keys[i]));
      supports[r].values.push_back(row.p[i]);
    }
  });
  result.blocks = std::move(blocks).finish();
  if (options.keep_probabilities) result.probabilities = join_rows(supports);
  return result;
}

}  // namespace splash::cpu_ref
