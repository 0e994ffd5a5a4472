#pragma once
// Products of listed queries with the keys of a head, tile by tile through a ring that TMA fills, and of
// their weights with the values.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/entmax/arguments/key_range.h"
#include "gpu/entmax/hopper/dense/finish.cuh"
#include "gpu/entmax/schedule/row_shares.cuh"

namespace splash::gpu::entmax::hopper {

template <int kPanels>  // of 64 dimensions
struct DenseTiles {
  // Warpgroups of 64 queries that share the keys; as many as registers allow.
  static constexpr int kGroups = kPanels == 1 ? 4 : kPanels == 2 ? 3 : 2;
  static constexpr int kThreads = 128 * kGroups, kQueries = 64 * kGroups;
  // Where registers do not hold both the queries and the output.
  static constexpr bool kQueriesInShared = kPanels == 2 || kPanels == 4;
  static constexpr int kParts = kPanels <= 3 ? 2 : 1, kKeys = kParts * kPart, kPanelBytes = kKeys * 128;
  static constexpr int kStages = kPanels == 1 ? 12 : kPanels == 2 ? 5 : 4;
  alignas(1024) unsigned char ring[kStages][kPanels * kPanelBytes];  // keys or values
  alignas(1024) unsigned char queries[kQueriesInShared ? kPanels * kQueries * 128 : 16];
  uint64_t full[kStages], empty[kStages];
  int begin[kQueries];  // a row sees no key before; never falls; only where rows have ranges
  RowShare share;       // that the block takes
  int number;           // of the share; -1: it took none yet
};

// kRanges: whether rows see ranges of keys (arguments/key_range.h), else all keys below an end. Neither end
// of a range falls from row to row.
template <class T, int kPanels, bool kRanges>
class DenseProducts {
 public:
  using Tiles = DenseTiles<kPanels>;
  static constexpr int kKeys = Tiles::kKeys, kParts = Tiles::kParts, kStages = Tiles::kStages;
  static constexpr int kThreads = Tiles::kThreads, kQueries = Tiles::kQueries;
  // Tiles per partial sum. Partial sums keep rounding errors from growing with the number of keys.
  static constexpr int kPartialTiles = 4096 / kKeys;

  const int lane;
  int end[2] = {0, 0};  // per row of the lane: the keys below it are visible; 0: none
  int tiles = 0;        // of keys, from first_tile() on
  int middle = 0;       // a tile that all rows with keys see, where there is one

  // No rows, until it takes some.
  __device__ __forceinline__ DenseProducts(const ForwardProblem& p, const CUtensorMap& k_map,
                                           const CUtensorMap& v_map, Tiles& shared)
      : lane(static_cast<int>(threadIdx.x) % 32), p_(p), k_map_(k_map), v_map_(v_map), shared_(shared) {
    if (threadIdx.x == 0) {
      shared_.number = -1;
      for (int s = 0; s < kStages; ++s) {
        arch::mbarrier_init(&shared_.full[s], 1);
        arch::mbarrier_init(&shared_.empty[s], kThreads / 32);
      }
      arch::mbarrier_init_fence();
    }
    __syncthreads();
  }

  // Takes the next share of the listed rows that no block has taken, where a share has `rows_of_share`.
  // False: there is none. By the whole block, which is done with its share before: no load is in flight, for
  // each was waited for.
  __device__ __forceinline__ bool take(int rows_of_share) {
    __syncthreads();  // all have read shared memory
    if (threadIdx.x == 0) {
      shared_.number =
          static_cast<int>(shared_.number < 0 ? blockIdx.x : gridDim.x + atomicAdd(p_.next_share, 1u));
    }
    __syncthreads();
    const RowShare share = row_share(p_, rows_of_share, shared_.number);
    if (share.head < 0) return false;
    const int head = share.head, first = share.first, count = share.end;
    if (threadIdx.x == 0) shared_.share = share;
    const int thread = static_cast<int>(threadIdx.x), group = thread / 128 * 64;
    const int warp_row = first + thread / 32 * 16, row = warp_row + lane / 4;
    const int* const rows = listed(head);
    const auto range = [&](int i) { return range_at(rows[min(i, count - 1)]); };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange seen = range(row + 8 * half);
      end[half] = row + 8 * half < count && seen.begin < seen.end ? seen.end : 0;
      if (kRanges && lane % 4 == 0) shared_.begin[row + 8 * half - first] = seen.begin;
    }
    const KeyRange of_first = range(first), of_last = range(first + kQueries - 1);
    warp_end_ = range(warp_row).end;
    group_end_ = first + group < count ? range(first + group + 63).end : 0;
    const int begin_tile = of_first.begin / kKeys;
    tiles = max((of_last.end + kKeys - 1) / kKeys - begin_tile, 0);
    middle = max(of_last.begin + of_first.end - 1, 0) / 2 / kKeys;
    if (kRanges) middle = min(max(middle, begin_tile), max(begin_tile + tiles - 1, 0));
    load_queries(share);
    __syncthreads();
    return true;
  }

  // Read each time, to save registers.
  __device__ __forceinline__ int head() const {
    return shared_.share.head;
  }

  // The query of the lane's row, -1 where there is none. Read each time, to save registers.
  __device__ __forceinline__ int query_of(int half) const {
    const RowShare& share = shared_.share;
    const int row = share.first + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + 8 * half;
    return row < share.end ? listed(share.head)[row] : -1;
  }

  // The first tile that a row sees. Begins are read from shared memory each time, to save registers.
  __device__ __forceinline__ int first_tile() const {
    return begin_of(0) / kKeys;
  }

  // Of the lane's row; empty where it does not exist or sees no key.
  __device__ __forceinline__ KeyRange range_of_row(int half) const {
    return {begin_of(static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + 8 * half), end[half]};
  }

  // The screen's bound of a row that exists.
  __device__ __forceinline__ float bound_of(int half) const {
    return p_.bounds == nullptr ? -INFINITY : p_.bounds[int64_t{head()} * p_.q_len + query_of(half)];
  }

  // Calls use(scores, first key) with every part of every stride-th tile from first_tile() + first on and
  // below first_tile() + end; masked scores are -inf. Calls fold_partial() after every kPartialTiles tiles,
  // and after the last one.
  template <class Use, class FoldPartial>
  __device__ __forceinline__ void multiply_keys(int first, int end, int stride, const Use& use,
                                                const FoldPartial& fold_partial) {
    constexpr int kAhead = kStages - 2;  // so thread 0 never waits for its own warp's release
    const int count = (end - first + stride - 1) / stride;
    const auto load_tile = [&](int i) {
      if (threadIdx.x == 0 && i < count) load(k_map_, (first_tile() + first + i * stride) * kKeys);
      __syncwarp();
    };
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) load_tile(i);
#pragma unroll 1
    for (int from = 0; from < count; from += kPartialTiles) {
      const int to = min(from + kPartialTiles, count);
#pragma unroll 1
      for (int i = from; i < to; ++i) {
        load_tile(i + kAhead);
        const int key = (first_tile() + first + i * stride) * kKeys;
        const unsigned char* const keys = landed();
        if (group_sees(key)) {
          float scores[kParts][kPart / 2];
#pragma unroll
          for (int part = 0; part < kParts; ++part) multiply(scores[part], keys + part * kPart * 128);
          if constexpr (kParts == 2) {
            arch::wgmma_wait<1>();
            arch::wgmma_hold(scores[0]);
            hide(scores[0], key);
            use(scores[0], key);
          }
          arch::wgmma_wait<0>();
          arch::wgmma_hold(scores[kParts - 1]);
          release(used_);
          hide(scores[kParts - 1], key + (kParts - 1) * kPart);
          use(scores[kParts - 1], key + (kParts - 1) * kPart);
        } else {
          release(used_);
        }
        used_.next();
      }
      fold_partial();
    }
  }
  template <class Use>
  __device__ __forceinline__ void multiply_keys(int first, int stride, const Use& use) {
    multiply_keys(first, tiles, stride, use, [] {});
  }

  // Calls use(scores) with the scores of a whole tile.
  template <class Use>
  __device__ __forceinline__ void keep(int tile, const Use& use) {
    if (threadIdx.x == 0) load(k_map_, tile * kKeys);
    __syncwarp();
    const unsigned char* const keys = landed();
    float scores[kParts][kPart / 2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) multiply(scores[part], keys + part * kPart * 128);
    arch::wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      arch::wgmma_hold(scores[part]);
      hide(scores[part], tile * kKeys + part * kPart);
    }
    release(used_);
    used_.next();
    use(scores);
  }

  // output, 0 before, becomes weights V over all keys. weigh(scores, first key, weights) turns scores into
  // weights; fold_partial() as above.
  template <class Weigh, class FoldPartial>
  __device__ __forceinline__ void multiply_values(float (&output)[32 * kPanels], const Weigh& weigh,
                                                  const FoldPartial& fold_partial) {
    volatile float total[32 * kPanels];  // of earlier partial sums, in local memory: rarely touched
    const auto load_tile = [&](int tile) {
      if (threadIdx.x == 0 && tile < tiles) {
        load(k_map_, (first_tile() + tile) * kKeys);
        load(v_map_, (first_tile() + tile) * kKeys);
      }
      __syncwarp();
    };
    load_tile(0);
#pragma unroll 1
    for (int from = 0; from < tiles; from += kPartialTiles) {
      const int to = min(from + kPartialTiles, tiles);
#pragma unroll 1
      for (int tile = from; tile < to; ++tile) {
        load_tile(tile + 1);
        const int key = (first_tile() + tile) * kKeys;
        const auto key_stage = used_;
        const unsigned char* const keys = landed();
        used_.next();
        const unsigned char* const values = landed();
        if (group_sees(key)) {
          const uint64_t descriptor = arch::mn_major_descriptor(values, Tiles::kPanelBytes);
          float scores[kPart / 2];
          uint32_t weights[kPart / 16][4];
          multiply(scores, keys);
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            arch::wgmma_wait<0>();  // also for the products that read the previous weights
            arch::wgmma_hold(scores);
            if (part > 0) arch::wgmma_hold(output);
            if (part == kParts - 1) release(key_stage);
            hide(scores, key + part * kPart);
            weigh(scores, key + part * kPart, weights);
            arch::wgmma_fence();
#pragma unroll
            for (int step = 0; step < kPart / 16; ++step) {
              const int bytes = (part * kPart + 16 * step) * 128;
              arch::wgmma<T, arch::Major::mn>(output, weights[step], arch::advance(descriptor, bytes), true);
            }
            arch::wgmma_commit();
            if (part + 1 < kParts) multiply(scores, keys + (part + 1) * kPart * 128);
          }
          arch::wgmma_wait<0>();
          arch::wgmma_hold(output);
        } else {
          release(key_stage);
        }
        release(used_);
        used_.next();
      }
      fold_partial();
      if (tiles <= kPartialTiles) continue;
#pragma unroll
      for (int i = 0; i < 32 * kPanels; ++i) {
        if (from > 0) output[i] += total[i];
        total[i] = output[i];
        if (to < tiles) output[i] = 0;
      }
    }
  }

 private:
  using Position = arch::RingPosition<kStages>;

  // The head's listed rows.
  __device__ __forceinline__ const int* listed(int head) const {
    return p_.rows.queries + int64_t{head} * p_.q_len;
  }

  // As the mask has it, for a row that exists.
  __device__ __forceinline__ KeyRange range_at(int query) const {
    if constexpr (kRanges) return range_of(p_, query);
    return {0, max(min(query + p_.reach, p_.kv_len), 0)};
  }

  // row: of the block
  __device__ __forceinline__ int begin_of(int row) const {
    return kRanges ? shared_.begin[row] : 0;
  }

  // Whether a row of the warpgroup may see a key of the tile.
  __device__ __forceinline__ bool group_sees(int first_key) const {
    const int first_row = static_cast<int>(threadIdx.x) / 128 * 64;
    return first_key < group_end_ && (!kRanges || first_key + kKeys > begin_of(first_row));
  }

  // By thread 0.
  __device__ __forceinline__ void load(const CUtensorMap& map, int key) {
    uint64_t* const full = &shared_.full[loaded_.stage];
    arch::mbarrier_wait(&shared_.empty[loaded_.stage], loaded_.parity ^ 1);
    arch::mbarrier_arrive_expect(full, sizeof shared_.ring[0]);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      arch::tensor_load(shared_.ring[loaded_.stage] + panel * Tiles::kPanelBytes, &map, full, 64 * panel, key,
                        head() / p_.group);
    loaded_.next();
  }
  __device__ __forceinline__ const unsigned char* landed() {
    arch::mbarrier_wait(&shared_.full[used_.stage], used_.parity);
    return shared_.ring[used_.stage];
  }
  __device__ __forceinline__ void release(const Position& position) {
    __syncwarp();  // a warpgroup may skip the tile: no wgmma_wait has gathered the lanes behind full
    if (lane == 0) arch::mbarrier_arrive(&shared_.empty[position.stage]);
  }

  __device__ __forceinline__ void multiply(float (&scores)[kPart / 2], const unsigned char* keys) {
    arch::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const uint64_t key_descriptor =
          arch::advance(arch::k_major_descriptor(keys + step / 4 * Tiles::kPanelBytes), 32 * (step % 4));
      if constexpr (Tiles::kQueriesInShared) {
        const unsigned char* const panel =
            shared_.queries + (step / 4 * kQueries + threadIdx.x / 128 * 64) * 128;
        arch::wgmma<T>(scores, arch::advance(arch::k_major_descriptor(panel), 32 * (step % 4)),
                       key_descriptor, step > 0);
      } else {
        arch::wgmma<T>(scores, queries_[step], key_descriptor, step > 0);
      }
    }
    arch::wgmma_commit();
  }

  __device__ __forceinline__ void hide(float (&scores)[kPart / 2], int first_key) const {
    const int last_row = static_cast<int>(threadIdx.x) / 32 * 16 + 15;
    if (first_key + kPart <= warp_end_ && (!kRanges || first_key >= begin_of(last_row))) return;
    const KeyRange seen[2] = {range_of_row(0), range_of_row(1)};
#pragma unroll
    for (int j = 0; j < kPart / 2; ++j) {
      const int key = first_key + 2 * (lane % 4) + 8 * (j / 4) + j % 2, half = j / 2 % 2;
      if (key >= end[half] || (kRanges && key < seen[half].begin)) scores[j] = -INFINITY;
    }
  }

  // Zeros for dimensions outside and for rows that do not exist.
  __device__ __forceinline__ void load_queries(const RowShare& share) {
    const auto* const q = static_cast<const uint16_t*>(p_.q) + int64_t{share.head} * p_.q_len * p_.head_dim;
    const int* const rows = listed(share.head);
    if constexpr (Tiles::kQueriesInShared) {
      for (int i = static_cast<int>(threadIdx.x); i < kQueries * 8 * kPanels; i += kThreads) {
        const int row = i / (8 * kPanels), chunk = i % (8 * kPanels), column = 8 * chunk;
        const uint4 loaded = share.first + row < share.end && column < p_.head_dim
                                 ? load8(q + int64_t{rows[share.first + row]} * p_.head_dim + column)
                                 : uint4{};
        const int at = arch::swizzled_offset(arch::Swizzle::bytes128, row, chunk % 8 * 16);
        store8(shared_.queries + chunk / 8 * kQueries * 128 + at, loaded);
      }
      arch::fence_async_proxy();
    } else {
      const int warp_row = share.first + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
      const auto query_of_share = [&](int row) { return row < share.end ? rows[row] : -1; };
      const int query[2] = {query_of_share(warp_row), query_of_share(warp_row + 8)};
#pragma unroll
      for (int step = 0; step < 4 * kPanels; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = query[i % 2], column = 16 * step + 2 * (lane % 4) + 8 * (i / 2);
          queries_[step][i] =
              row >= 0 && column < p_.head_dim
                  ? *reinterpret_cast<const uint32_t*>(q + int64_t{row} * p_.head_dim + column)
                  : 0;
        }
      }
    }
  }

  const ForwardProblem& p_;
  const CUtensorMap &k_map_, &v_map_;
  Tiles& shared_;
  uint32_t queries_[Tiles::kQueriesInShared ? 1 : 4 * kPanels][4];
  int warp_end_ =
      0;  // all rows of the warp see the keys below; the warpgroup's last row, those below group_end_
  int group_end_ = 0;
  Position used_, loaded_;
};

}  // namespace splash::gpu::entmax::hopper
