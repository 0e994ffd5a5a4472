#pragma once
// Which keys the rows of a warp see under the mask. A lane holds the rows lane / 4 and lane / 4 + 8 of its
// warp, called its halves.

#include <climits>

#include "core/pair_words.h"
#include "gpu/entmax/arguments/key_range.h"
#include "gpu/entmax/math/arithmetic.cuh"
#include "gpu/entmax/portable/problem.h"

namespace splash::gpu::entmax::portable {

constexpr int kWarpRows = 16;
static_assert(kTileKeys == kKeysAWord, "a tile's pairs of a row are one word");

class VisibleRows {
 public:
  // query: -1 where there is no row; it sees nothing, like a row whose range is empty.
  __device__ __forceinline__ VisibleRows(const PortableProblem& p, int head, const int (&query)[2])
      : by_pairs_(p.mask.pairs != nullptr) {
    KeyRange all{INT_MAX, 0}, common{0, INT_MAX};  // seen by some row; by every row that sees any key
    const int32_t* const positions =
        p.mask.q_positions == nullptr
            ? nullptr
            : p.mask.q_positions + int64_t{head} * p.mask.q_tables / p.heads * p.q_len;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      range_[half] = query[half] < 0 ? KeyRange{0, 0} : range_of(p, query[half]);
      const int64_t table = int64_t{head} * p.mask.pair_tables / p.heads;
      pairs_[half] = by_pairs_ && query[half] >= 0
                         ? p.mask.pairs + (table * p.q_len + query[half]) * pair_words(p.kv_len)
                         : nullptr;
      position_[half] = positions != nullptr && query[half] >= 0 ? positions[query[half]] : 0;
      if (range_[half].begin >= range_[half].end) continue;
      all = {min(all.begin, range_[half].begin), max(all.end, range_[half].end)};
      common = {max(common.begin, range_[half].begin), min(common.end, range_[half].end)};
    }
    all_ = {__reduce_min_sync(kWarp, all.begin), __reduce_max_sync(kWarp, all.end)};
    common_ = {__reduce_max_sync(kWarp, common.begin), __reduce_min_sync(kWarp, common.end)};
  }

  // Whether the row may see any key. Where not, ignore the scores that hide() leaves of it.
  __device__ __forceinline__ bool sees(int half) const {
    return range_[half].begin < range_[half].end;
  }

  // Widens the block's range, in shared memory, to include the warp's.
  __device__ __forceinline__ void join(KeyRange& block) const {
    if (threadIdx.x % 32 != 0 || all_.begin >= all_.end) return;
    atomicMin(&block.begin, all_.begin);
    atomicMax(&block.end, all_.end);
  }

  // first_key: of a tile. All lanes call it together.
  __device__ __forceinline__ bool warp_sees(int first_key) const {
    const bool in_range = first_key < all_.end && all_.begin - first_key < kTileKeys;
    if (!by_pairs_) return in_range;
    return __any_sync(kWarp, in_range && (pairs_of(0, first_key) | pairs_of(1, first_key)) != 0);
  }

  // Sets the scores of keys that a row does not see to -inf. positions: the tile's keys', in shared memory,
  // or null.
  template <class Scores>
  __device__ __forceinline__ void hide(Scores& acc, int first_key, const int* positions) const {
    const bool whole = first_key >= common_.begin && common_.end - first_key >= kTileKeys;
    const uint64_t pairs[2] = {pairs_of(0, first_key), pairs_of(1, first_key)};
    const bool all_pairs =
        !by_pairs_ || !__any_sync(kWarp, (sees(0) && ~pairs[0] != 0) || (sees(1) && ~pairs[1] != 0));
    if (whole && all_pairs && positions == nullptr) return;
    const int first = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int j = 0; j < kTileKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int in_tile = 8 * j + first + e, key = first_key + in_tile;
        const int position = positions != nullptr ? positions[in_tile] : 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool visible = key >= range_[half].begin && key < range_[half].end &&
                               (positions == nullptr || position <= position_[half]) &&
                               (pairs[half] >> in_tile & 1) != 0;
          if (!visible) acc[j][2 * half + e] = -INFINITY;
        }
      }
    }
  }

 private:
  // Of a tile's keys; all of them where the mask has no pairs, none where there is no row.
  __device__ __forceinline__ uint64_t pairs_of(int half, int first_key) const {
    if (pairs_[half] != nullptr) return pairs_[half][first_key / kTileKeys];
    return sees(half) ? ~uint64_t{0} : 0;
  }

  KeyRange range_[2];
  const bool by_pairs_;
  const uint64_t* pairs_[2];  // of the rows; null where the mask has none or there is no row
  int position_[2];
  KeyRange all_, common_;
};

}  // namespace splash::gpu::entmax::portable
