#pragma once
// Rows that are neighbours mostly list the same keys: the first ones, recent ones, and those that a text
// makes matter to all. Where the keys that any of a warp's 16 rows lists are at most kMostShared, the rows
// are finished together: a dense attention of 16 queries and these keys, each read once. What finish_rows
// (finish.cuh) does entry by entry is done here in registers:
//
//   collect_shared   A bit for each key that a row lists, then the list of these keys.
//   score            Exact scores of all of them with all rows, on tensor cores; -inf where the row does not
//                    see the key. A key that a row did not list has p = 0 there.
//   solve            tau by Newton's steps from the screen's bound.
//   sum_values       Probabilities, and output = sum of p v, on tensor cores.
//   store_entries    The support.
//
// A lane has the scores of its quad's two rows (row_of) with four keys of each batch of 16, as products leave
// them.

#include "gpu/entmax/hopper/solve/list_products.cuh"
#include "gpu/entmax/hopper/solve/solve_rows.cuh"
#include "gpu/entmax/support/allocate.cuh"

namespace splash::gpu::entmax::hopper {

constexpr int kSharedBatches = 3, kSharedBatch = 16, kMostShared = kSharedBatches * kSharedBatch;
// Where a row sees more keys, or columns hold more tiles, the rows hardly share so few: it is not tried.
constexpr int kMostSharedWords = 256, kMostSharedTiles = 192;

// A probability as the sum of two 16-bit floats, the larger one in the low half: nearly as precise as
// float32.
template <class T>
__device__ __forceinline__ uint32_t split(float p) {
  const float rest = p - unpacked<T>(arch::pack_pair<T>(p, 0)).x;
  return arch::pack_pair<T>(p, rest);
}

// What the shared keys need of shared memory, where key tiles were.
struct SharedKeys {
  uint32_t bits[kMostSharedWords];
  alignas(16) int keys[kMostShared];  // behind the last one, keys that no row sees
};
constexpr uint32_t kHiddenKey = 1u << 31;

// Lists the keys of the columns, from `first` on, a multiple of kTileKeys, and below `end`. Returns how many
// there are, or -1 if they are too many. By the whole warp.
template <class Lists>
__device__ __forceinline__ int collect_shared(const Lists& lists, int first, int end, SharedKeys& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, words = (end - first + kTileKeys - 1) / kTileKeys * 2;
  const int tile = lists.tiles[lane];
  if (words > kMostSharedWords || __reduce_add_sync(kWarp, Lists::kPairs - tile) > kMostSharedTiles)
    return -1;
#pragma unroll 1
  for (int word = 4 * lane; word < words; word += 128)
    *reinterpret_cast<uint4*>(&shared.bits[word]) = uint4{};
#pragma unroll
  for (int i = lane; i < kMostShared; i += 32) shared.keys[i] = static_cast<int>(kHiddenKey) | first;
  __syncwarp();  // before bits are set
  const uint32_t open = bits_of_open_rows(lists, lane / 4);
#pragma unroll 1
  for (int pair = tile; pair < Lists::kPairs; ++pair) {
    const int2 column = *reinterpret_cast<const int2*>(lists.columns[pair][lane]);
    const uint32_t hits = static_cast<uint32_t>(column.x) & open, keys = (hits | hits >> 8) & kFirstRow;
    // Even keys, then odd ones: 16 bits of each lane of a quad.
    if (keys != 0)
      atomicOr(&shared.bits[(column.y - first) / 32 + lane % 4 / 2], ((keys | keys >> 8) & 0xFFFF)
                                                                         << lane % 2 * 16);
  }
  __syncwarp();  // all bits are set
  const int key_of_bit = first + lane / 16 * 2 + lane % 8 * 8 + lane / 8 % 2;
  int count = 0;
#pragma unroll 1
  for (int from = 0; from < words; from += 32) {
    const uint32_t own = from + lane < words ? shared.bits[from + lane] : 0;
#pragma unroll 1
    for (unsigned rest = __ballot_sync(kWarp, own != 0); rest != 0; rest &= rest - 1) {
      const int holder = 31 - __clz(static_cast<int>(rest & (0u - rest))), word = from + holder;
      const uint32_t bits = __shfl_sync(kWarp, own, holder);
      const int place = count + __popc(bits & ((1u << lane) - 1));
      count += __popc(bits);
      if (count > kMostShared) return -1;
      if ((bits >> lane & 1) != 0) shared.keys[place] = key_of_bit + word / 2 * kTileKeys + word % 2 * 4;
    }
  }
  __syncwarp();  // keys
  return count;
}

// The 16 rows with the shared keys, by a warp: T is the element, of at most 64 dimensions.
template <class T, class Lists>
class SharedRows {
 public:
  __device__ __forceinline__ SharedRows(const ForwardProblem& p, int head, const Entmax& entmax,
                                        const Lists& lists, const SharedKeys& shared)
      : p_(p), lists_(lists), shared_(shared), entmax_(entmax), head_(head) {
    const LaneChunks<64> queries(p.q, int64_t{head} * p.q_len, p, lane() % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      queries.load(static_cast<uint32_t>(max(lists.query[row_of(half)], 0)), q_[half]);
  }

  // Takes the keys: scores, tau and probabilities. Then values are on their way.
  __device__ __forceinline__ void take(int count) {
    count_ = count;
    score();
#pragma unroll
    for (int batch = 0; batch < kAsked; ++batch) ask_for_values(batch);
    solve();
  }
  // How many of the lane's scores have p > 0, of each row.
  __device__ __forceinline__ void count_entries(int (&entries)[2]) const {
    entries[0] = entries[1] = 0;
    for_scores([&](int half, float excess) { entries[half] += excess > 0 ? 1 : 0; });
  }
  __device__ __forceinline__ float tau(int half) const {
    return half == 0 ? tau_[0] : tau_[1];
  }

  // A value that is not finite may make all rows of the warp NaN. Products are those of gather_values
  // (list_products.cuh), but that each lane has the probabilities that it needs, so both eights of rows take
  // a batch's values.
  template <class Writes>
  __device__ __forceinline__ void sum_values(const Writes& writes) {
    float sums[2][4][4] = {};
#pragma unroll
    for (int batch = 0; batch < kSharedBatches; ++batch) {
      if (kSharedBatch * batch >= count_) break;
      uint32_t large[2][2], rest[2][2];  // of each half's rows
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float weights[4];
        entmax_.visit([&](auto kind) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float excess = scores_[batch][half][i];
            weights[i] = fmaxf(excess, 0.0f) * entmax_.slope(kind, excess);
          }
        });
        uint32_t probability[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          probability[i] = weights[i] > 0 ? split<T>(inverse_[half] * weights[i]) : 0;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          large[half][j] = __byte_perm(probability[2 * j], probability[2 * j + 1], 0x5410);
          rest[half][j] = __byte_perm(probability[2 * j], probability[2 * j + 1], 0x7632);
        }
      }
      const auto& values = values_[batch % kAsked];
      const uint4 &a = values[0], &b = values[1], &c = values[2], &d = values[3];
      const uint32_t words[4][4] = {
          {a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}, {a.z, b.z, c.z, d.z}, {a.w, b.w, c.w, d.w}};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t value_pairs[4] = {
            __byte_perm(words[w][0], words[w][1], 0x5410), __byte_perm(words[w][0], words[w][1], 0x7632),
            __byte_perm(words[w][2], words[w][3], 0x5410), __byte_perm(words[w][2], words[w][3], 0x7632)};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          arch::mma_m16n8k16<T>(sums[half][w], value_pairs, large[half][0], large[half][1]);
          arch::mma_m16n8k16<T>(sums[half][w], value_pairs, rest[half][0], rest[half][1]);
        }
      }
      if (batch + kAsked < kSharedBatches) ask_for_values(batch + kAsked);
    }
    const LaneChunks<128> out(p_.out, int64_t{head_} * p_.q_len, p_, lane() / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {  // the lane's sums belong to two rows of each half
        const int row = 2 * (lane() % 4) + j + 8 * half;
        const auto& s = sums[half];
        if (writes(row) && out.inside > 0)
          *out.at(static_cast<uint32_t>(lists_.query[row]), 0) = {
              arch::pack_pair<T>(s[0][j], s[0][j + 2]), arch::pack_pair<T>(s[1][j], s[1][j + 2]),
              arch::pack_pair<T>(s[2][j], s[2][j + 2]), arch::pack_pair<T>(s[3][j], s[3][j + 2])};
      }
    }
  }

  // at: where the lane's entries of each row come; -1: nowhere.
  __device__ __forceinline__ void store_entries(const Support& support, const int64_t (&at)[2]) const {
    int* columns[2] = {support.columns + at[0], support.columns + at[1]};
    float* excess[2] = {support.excess + at[0], support.excess + at[1]};
    const float least[2] = {at[0] >= 0 ? 0 : INFINITY, at[1] >= 0 ? 0 : INFINITY};
#pragma unroll
    for (int batch = 0; batch < kSharedBatches; ++batch) {
      if (kSharedBatch * batch >= count_) break;
      const int4 four = keys_of(batch);
      const int keys[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float one = scores_[batch][half][i];
          const bool keeps = one > least[half];
          if (keeps) {
            *columns[half] = keys[i];
            *excess[half] = one;
          }
          columns[half] += keeps ? 1 : 0;
          excess[half] += keeps ? 1 : 0;
        }
      }
    }
  }

 private:
  static constexpr int kChunks = 2, kAsked = 2;  // kAsked: batches that are on their way at once

  static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  // The keys of the lane's scores of a batch.
  __device__ __forceinline__ int4 keys_of(int batch) const {
    return *reinterpret_cast<const int4*>(&shared_.keys[kSharedBatch * batch + lane() % 4 * 4]);
  }
  static __device__ __forceinline__ uint32_t place_of(int key) {
    return static_cast<uint32_t>(key) % kMostKeys;
  }
  template <class Use>
  __device__ __forceinline__ void for_scores(const Use& use) const {
#pragma unroll
    for (int batch = 0; batch < kSharedBatches; ++batch) {
      if (kSharedBatch * batch >= count_) break;
#pragma unroll
      for (int i = 0; i < 8; ++i) use(i % 2, scores_[batch][i % 2][i / 2]);
    }
  }

  // A product's rows are queries, its columns eight keys: column n of product j is key 4 (n / 2) + 2 j +
  // n % 2 of the batch, so that a lane has the scores of four keys that follow one another. Dimensions are
  // permuted as in score_exactly (list_products.cuh).
  __device__ __forceinline__ void score() {
    const LaneChunks<64> keys(p_.k, int64_t{head_ / p_.group} * p_.kv_len, p_, lane() % 4);
    const int column = lane() / 4;
    uint4 loaded[kAsked][2][kChunks] = {};
    const auto ask = [&](int batch) {
      if (kSharedBatch * batch >= count_) return;
      const int* const from = &shared_.keys[kSharedBatch * batch + column / 2 * 4 + column % 2];
#pragma unroll
      for (int j = 0; j < 2; ++j) keys.load(place_of(from[2 * j]), loaded[batch % kAsked][j]);
    };
#pragma unroll
    for (int batch = 0; batch < kAsked; ++batch) ask(batch);
    unsigned end[2];
    int begin[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      end[half] = static_cast<unsigned>(lists_.end[row_of(half)]);
      begin[half] = p_.has_ranges() ? lists_.begin[row_of(half)] : 0;
    }
#pragma unroll
    for (int batch = 0; batch < kSharedBatches; ++batch) {
#pragma unroll
      for (int i = 0; i < 8; ++i) scores_[batch][i % 2][i / 2] = -INFINITY;
      if (kSharedBatch * batch >= count_) continue;
      const int4 four = keys_of(batch);
      const int own[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float products[4] = {};
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const uint4 &a = q_[0][c], &b = q_[1][c], &k = loaded[batch % kAsked][j][c];
          arch::mma_m16n8k16<T>(products, {a.x, b.x, a.y, b.y}, k.x, k.y);
          arch::mma_m16n8k16<T>(products, {a.z, b.z, a.w, b.w}, k.z, k.w);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int half = i / 2, key = 2 * j + i % 2;
          if (static_cast<unsigned>(own[key]) < end[half] && own[key] >= begin[half])
            scores_[batch][half][key] = products[i];
        }
      }
      if (batch + kAsked < kSharedBatches) ask(batch + kAsked);
    }
  }

  __device__ __forceinline__ void ask_for_values(int batch) {
    if (kSharedBatch * batch >= count_) return;
    const LaneChunks<128> values(p_.v, int64_t{head_ / p_.group} * p_.kv_len, p_, lane() / 4);
    const int4 four = keys_of(batch);
    const int own[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (values.inside > 0) values_[batch % kAsked][i] = __ldg(values.at(place_of(own[i]), 0));
    }
  }

  // As solve_rows. Scores become their excess z - tau.
  __device__ __forceinline__ void solve() {
    float sum[2], largest[2], bound[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[half] = -INFINITY;
#pragma unroll
      for (const auto& batch : scores_)
        largest[half] = fmaxf(largest[half], fmaxf(fmaxf(batch[half][0], batch[half][1]),
                                                   fmaxf(batch[half][2], batch[half][3])));
      largest[half] = quad_max(largest[half]);
      if (largest[half] == -INFINITY) largest[half] = 0;
#pragma unroll
      for (auto& batch : scores_) {
#pragma unroll
        for (float& score : batch[half]) score -= largest[half];
      }
      bound[half] =
          fmaxf(bound_of_row(lists_, row_of(half)) - largest[half], bound_of_largest(0, entmax_.gain));
    }
    entmax_.visit([&](auto kind) {
#pragma unroll 1
      for (int step = 0; step < 40; ++step) {
        float slope[2] = {};
        sum[0] = sum[1] = 0;
        for_scores([&](int half, float score) {
          const float u = entmax_.gain * (score - bound[half]), u_slope = entmax_.slope(kind, u);
          sum[half] = fmaf(fmaxf(u, 0.0f), u_slope, sum[half]);
          slope[half] += u_slope;
        });
        bool moved = false;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float before = bound[half];
          sum[half] = quad_sum(sum[half]);
          bound[half] = newton(entmax_.beta * entmax_.gain, before, sum[half], quad_sum(slope[half]));
          moved |= bound[half] > before + 1e-7f * fabsf(before);
        }
        if (!__any_sync(kWarp, moved)) break;
      }
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      inverse_[half] = __fdividef(1, sum[half]);
      tau_[half] = entmax_.gain * (largest[half] + bound[half]);
#pragma unroll
      for (auto& batch : scores_) {
#pragma unroll
        for (float& score : batch[half]) score = entmax_.gain * (score - bound[half]);
      }
    }
  }

  const ForwardProblem& p_;
  const Lists& lists_;
  const SharedKeys& shared_;
  const Entmax entmax_;
  int head_, count_ = 0;
  uint4 q_[2][kChunks] = {};
  float scores_[kSharedBatches][2][4];  // of each half's row with the lane's four keys; later their excess
  uint4 values_[kAsked][4] = {};
  float tau_[2], inverse_[2];  // inverse: of the sum of the weights
};

// Finishes the warp's rows, where the keys that they list are few. Tells whether they are; else nothing has
// changed. Not inlined, as finish_rows.
template <class T, class Lists>
__device__ __noinline__ bool finish_shared(const ForwardProblem& p, int head_index, const Head& head,
                                           const Lists& lists, int (&listed)[Lists::kMost]) {
  static_assert(sizeof(SharedKeys) <= sizeof listed);
  if (lists.slot >= 0) return false;
  auto& shared = reinterpret_cast<SharedKeys&>(listed);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  SharedRows<T, Lists> rows(p, head_index, head.entmax, lists, shared);
  const int end = __reduce_max_sync(kWarp, lists.end[lane % kWarpRows]);
  const int first = p.has_ranges() ? lists.begin[0] / kTileKeys * kTileKeys : 0;
  const int count = collect_shared(lists, first, end, shared);
  if (count < 0) return false;
  rows.take(count);
  const bool stores = p.support.columns != nullptr;
  QuadAllocation allocation;
  if (stores) {
    int entries[2];
    rows.count_entries(entries);
    allocation.ask(p.support, entries);
  }
  const auto writes = [&](int row) { return lists.query[row] >= 0 && !lists.bound[row].is_deferred(); };
  if (p.tau != nullptr &&
      lane % 4 < 2) {  // the quad's first lane for its first row, the second for the other
    const int row = row_of(lane % 4);
    if (writes(row))
      p.tau[int64_t{head_index} * p.q_len + lists.query[row]] =
          lists.end[row] == 0 ? INFINITY : rows.tau(lane % 4);
  }
  rows.sum_values(writes);
  if (stores) {
    const Support support = p.support;  // read at once
    int64_t at[2];
    const int queries[2] = {writes(lane / 4) ? lists.query[lane / 4] : -1,
                            writes(lane / 4 + 8) ? lists.query[lane / 4 + 8] : -1};
    allocation.place(support, int64_t{head_index} * p.q_len, queries, at);
    rows.store_entries(support, at);
  }
  return true;
}

}  // namespace splash::gpu::entmax::hopper
