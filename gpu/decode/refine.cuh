#pragma once
// Exact scores after a screen: refine_bounds scores each row's best keys and bounds its threshold;
// rescore_segment scores what a warp has found above the bounds.

#include "gpu/arch/prefetch.cuh"
#include "gpu/decode/candidates.cuh"
#include "gpu/decode/start.cuh"
#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// Exact scores of the lanes' keys for a row: a lane gets up to four.
template <class T, int kDim>
__device__ __forceinline__ void score_proposed(const Step& p, const Unit& unit, const HeldUnit<T, kDim>& held,
                                               const Visible& sees, int length, int row, int key, int lane,
                                               float (&scores)[kBounding]) {
  const Queries<T, kDim> q(held.queries, lane);
  ChosenKeys<T, kDim> keys[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int low = __shfl_sync(kAllLanes, key, 16 * half + lane / 4),
              high = __shfl_sync(kAllLanes, key, 16 * half + lane / 4 + 8);
    keys[half].load(p, unit, low, high, length, lane);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float d[4];
    keys[half].score(q, sees, d);
    const bool has_row = lane % 4 == row / 2;
    scores[2 * half] = has_row ? (row % 2 == 0 ? d[0] : d[1]) : -INFINITY;
    scores[2 * half + 1] = has_row ? (row % 2 == 0 ? d[2] : d[3]) : -INFINITY;
  }
}

// Bounds the threshold of each row from below, one row per warp, in the block. A bound is the threshold of up
// to 32 of the best keys that the runs have proposed in this pass, which the warp scores, and of the largest
// ones of head and tail; that of pass 1 only raises that of pass 0. Rows that are not there, or have none,
// are bounded by infinity. kIsExact: upper scores are the exact ones. All threads call it; a barrier must
// follow.
template <bool kIsExact, class T, int kDim>
__device__ void refine_bounds(const Step& p, const Unit& unit, const HeldUnit<T, kDim>& held,
                              const Visible& sees, int length, int runs, int pass,
                              const float (&largest)[kLargest], RowBounds& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32;
  const Entmax entmax = held.entmax[row];
  if (row >= unit.rows || !(entmax.gain > 0)) {
    if (lane == 0) {
      rows.bounds[row] = INFINITY;
      rows.codes[row] = HeldCodes::kMost;
    }
    return;
  }
  const int64_t of_row = (int64_t{unit.index} * kRows + row) * 2 + pass;
  const Best* proposed = p.best + of_row * p.segments.runs * p.best_of_run;
  Best mine{-INFINITY, -1};  // of every 32nd
#pragma unroll 4
  for (int i = lane; i < runs * p.best_of_run; i += 32) {
    const Best other = proposed[i];
    if (other.upper > mine.upper) mine = other;
  }
  Scores<kBounding> bounding;
  float(&scores)[kBounding] = bounding.of_lane;
  if constexpr (kIsExact) {
    scores[0] = mine.key >= 0 && row_sees(p, unit, row, mine.key, length) ? mine.upper : -INFINITY;
    scores[1] = scores[2] = scores[3] = -INFINITY;
  } else {
    score_proposed(p, unit, held, sees, length, row, mine.key, lane, scores);
  }
#pragma unroll
  for (int i = 0; i < kLargest; ++i) scores[4 + i] = largest[i];
  const float before = pass == 0 ? -INFINITY : rows.bounds[row];
  const float bound = fmaxf(bound_of(entmax, bounding, before), before);
  if (lane != 0) return;
  rows.bounds[row] = bound;
  rows.codes[row] = static_cast<uint8_t>(HeldCodes::of_bound(entmax, bound, rows.bases[row]));
}

// Of a segment's `listed` keys, finds those that are above the bounds of any row.
template <int kInShared>
__device__ __forceinline__ void keep_listed(const Step& p, const Unit& unit, int segment, int listed,
                                            const float (&bounds)[kRows], FoundKeys<kInShared>& found,
                                            int lane) {
  const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment);
  const int32_t* keys = p.keys + list;  // `found` writes them, too: none before it is read
  const float* scores = p.scores + list * p.listed_rows;
  constexpr int kAhead = 4;
  __syncwarp();  // what other lanes have listed
#pragma unroll 1
  for (int entry = lane; entry - lane < listed; entry += 32 * kAhead) {
    int key[kAhead];
    bool wanted[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int mine = entry + 32 * i;
      if (mine >= listed) continue;
      key[i] = keys[mine];
#pragma unroll
      for (int pair = 0; pair < kRows; pair += 2) {
        if (pair >= unit.rows) break;
        const float2 upper = *reinterpret_cast<const float2*>(scores + mine * p.listed_rows + pair);
        wanted[i] |= !(upper.x <= bounds[pair]) || !(upper.y <= bounds[pair + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) found.add(key[i], wanted[i] ? 1u : 0u);
  }
}

constexpr int kMany = 32;  // keys that a warp has found

// Which keys a warp scores: those that it has found itself or, where a warp of the block has found many, its
// share of what all have found.
struct KeyShare {
  bool are_shared;
  int begin, end, all;  // places among them; all: of the block, where they are shared

  // count: keys that the warp has found; found: room for those of all; has_many: whether a warp of the block
  // has found more than kMany. All threads call it.
  __device__ __forceinline__ KeyShare(int count, bool has_many, int32_t (&found)[kWarps])
      : are_shared(has_many), begin(0), end(count), all(0) {
    if (!are_shared) return;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    if (lane == 0) found[warp] = count;
    __syncthreads();
#pragma unroll
    for (const int of_warp : found) all += of_warp;
    begin = all * warp / kWarps;
    end = all * (warp + 1) / kWarps;
  }
};

// Collects `count` of the keys that a block's warps have found, from the at'th on; `found` of each, in
// segments from first_segment on. Returns the place behind them.
template <int kWarpKeys>
__device__ __forceinline__ int collect_shared(const Step& p, const Unit& unit, int first_segment,
                                              const int32_t (&found)[kWarps], int32_t (&kept)[kWarpKeys],
                                              int at, int count, int lane) {
  const int32_t* const keys = p.keys + int64_t{unit.index} * p.segments.total();
  __syncwarp();  // what the lanes have read before
  for (int i = lane; i < count; i += 32) {
    int place = at + i, from = 0;
    for (; place >= found[from]; ++from) place -= found[from];
    kept[i] = keys[p.segments.first(first_segment + from) + place];
  }
  return at + count;
}

constexpr int kKept = 128;  // keys that a warp scores at a time

// Scores a segment's keys exactly, and lists for each row those above its bound, in the order in which they
// come. collect(kept, count) puts up to kKept of them into `kept`, a warp's shared memory, and says whether
// there are more. listed: keys that the screen found; -1: all that come. see(largest): called with the
// largest scores of the lane's keys, of rows 2 t and 2 t + 1.
template <class T, int kDim, class Collect, class See>
__device__ __forceinline__ void rescore_segment(const Step& p, const Unit& unit,
                                                const HeldUnit<T, kDim>& held, const Visible& sees,
                                                int length, int segment, int listed,
                                                const float (&bounds)[kRows], int32_t (&kept)[kKept],
                                                int lane, const Collect& collect, const See& see) {
  const int row = 2 * (lane % 4), at = unit.index * p.segments.count() + segment;
  const int64_t list = (int64_t{unit.index} * p.segments.total() + p.segments.first(segment)) * p.listed_rows;
  float* scores = p.scores + list + row;
  int32_t* row_keys = p.row_keys + list + row;
  float largest[2] = {-INFINITY, -INFINITY};
  int above[2] = {}, scored = 0;  // above: of rows `row` and row + 1
#pragma unroll 1
  for (bool more = true; more;) {
    int count = 0;
    more = collect(kept, count);
    __syncwarp();
    scored += count;
    const Queries<T, kDim> q(held.queries, lane);
    // The next 16 keys are on their way while these are scored.
    ChosenKeys<T, kDim> next;
    const auto load = [&](int first) {
      const int low = first + lane / 4, high = low + 8;
      next.load(p, unit, low < count ? kept[low] : -1, high < count ? kept[high] : -1, length, lane);
    };
    load(0);
#pragma unroll 1
    for (int i = 16 + lane; i < count; i += 32) {  // of many keys, later ones need not wait for DRAM in turn
      const T* const at = unit.key_of<T>(p, p.cache.keys, kept[i], length);
      if (at != nullptr) arch::prefetch<kDim* int{sizeof(T)}>(at);
    }
#pragma unroll 1
    for (int first = 0; first < count; first += 16) {
      const ChosenKeys<T, kDim> now = next;
      load(first + 16);
      float d[4];
      now.score(q, sees, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        largest[i % 2] = arch::larger_or_nan(largest[i % 2], d[i]);
        // Of the lanes of one row.
        const bool is_above = d[i] > bounds[row + i % 2];
        const unsigned all = __ballot_sync(kAllLanes, is_above) & 0x11111111u << lane % 4;
        if (is_above) {
          const int to = (above[i % 2] + __popc(all & ((1u << lane) - 1))) * p.listed_rows + i % 2;
          const int key = i < 2 ? now.low : now.high;
          scores[to] = d[i];
          row_keys[to] = key;
          arch::prefetch<kDim* int{sizeof(T)}>(unit.in_page<T>(p, p.cache.values, unit.page(p, key), key));
        }
        above[i % 2] += __popc(all);
      }
    }
    __syncwarp();
  }
  see(largest);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2)
      largest[j] = arch::larger_or_nan(largest[j], __shfl_xor_sync(kAllLanes, largest[j], lanes));
    if (lane < 4) p.found[int64_t{at} * kRows + row + j] = {largest[j], above[j]};
  }
  if (lane == 0) {
    p.counts[at] = listed < 0 ? scored : listed;
    p.kept[at] = scored;
  }
}

}  // namespace splash::gpu::decode
