#pragma once
// After the screen: a warp computes the scores of the keys on its 16 rows' lists, exactly, solves the rows,
// stores their support and gathers their values.
//
// The lists of the first eight rows lie one after the other, row by row, then from a multiple of 32 on those
// of the others: so tensor products are full, whatever lists are long. Behind each eight, up to a multiple of
// 32, any key of the head, of any row.

#include "gpu/arch/mma.cuh"
#include "gpu/entmax/allocate.cuh"
#include "gpu/entmax/row_lists.cuh"
#include "gpu/entmax/vectors.cuh"

namespace splash::gpu::entmax {

__device__ __forceinline__ int full_batches(int entries) {
  return (entries + 31) & ~31;
}

// A list's entry: a key below kMostKeys (problem.h), and above it which of eight rows it belongs to.
__device__ __forceinline__ int entry_of(int key, int row) {
  return key | row << 28;
}
__device__ __forceinline__ int row_of_entry(int entry) {
  return static_cast<int>(static_cast<unsigned>(entry) >> 28);
}
__device__ __forceinline__ uint32_t key_of_entry(int entry) {
  return static_cast<uint32_t>(entry) % kMostKeys;
}

// Entries of eight rows: from `first` to below `end`.
struct EightLists {
  int first, end;
};

// Puts the lists one after the other. start, length: of the calling lane's rows. False where there is too
// little room: a tile may hold more keys than it takes slots.
template <class Lists>
__device__ __forceinline__ bool join_columns(Lists& lists, int (&listed)[Lists::kMost],
                                             EightLists (&eights)[2], int (&start)[2], int (&length)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = quad_of_lane();
  const int keys = lists.keys[lane], tiles = lists.tiles[lane];
  int count[2] = {};
  for (int i = 0; i < keys; ++i) {
    count[0] += 1 - half_of(lists.slot(lane, i));
    count[1] += half_of(lists.slot(lane, i));
  }
  for (int pair = tiles; pair < Lists::kSlots / 2; ++pair) {
    const auto bits = static_cast<uint32_t>(lists.columns[pair][lane][0]);
    count[0] += __popc(bits & kFirstRow);
    count[1] += __popc(bits & ~kFirstRow);
  }
  int upto = count[0] | count[1] << 16;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int lower = __shfl_up_sync(kWarp, upto, lanes);
    if (lane >= lanes) upto += lower;
  }
  const int total = __shfl_sync(kWarp, upto, 31);
  eights[0] = {0, total & 0xFFFF};
  eights[1].first = full_batches(eights[0].end);
  eights[1].end = eights[1].first + (total >> 16);
  if (full_batches(eights[1].end) > Lists::kMost) return false;
  int next[2] = {(upto & 0xFFFF) - count[0], eights[1].first + (upto >> 16) - count[1]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    start[half] = __shfl_sync(kWarp, next[half], 0, 4);
    length[half] = __shfl_sync(kWarp, next[half] + count[half], 3, 4) - start[half];
  }
  const auto put = [&](int half, int key) {
    const int at = half == 0 ? next[0]++ : next[1]++;
    listed[at] = entry_of(key, quad);
  };
  for (int i = 0; i < keys; ++i) put(half_of(lists.slot(lane, i)), key_of(lists.slot(lane, i)));
  visit_tiles(lists, [&](int half, int key, int) { put(half, key); });
#pragma unroll
  for (const EightLists& eight : eights) {
    const int behind = eight.end + lane;
    if (behind < full_batches(eight.end)) listed[behind] = 0;
  }
  __syncwarp();
  return true;
}

// A head's rows of 16-bit elements in memory, of which the calling lane has 16 bytes of every kApart.
template <int kChunks, int kApart>
struct LaneChunks {
  uint32_t row_bytes;
  const char* first[kChunks];  // of the head's first row; where a row ends before, its start
  bool inside[kChunks];

  __device__ __forceinline__ LaneChunks(const void* rows, int64_t first_row, const Problem& p, int chunk)
      : row_bytes(2 * static_cast<uint32_t>(p.head_dim)) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const auto column = static_cast<uint32_t>(16 * chunk + kApart * c);
      inside[c] = column < row_bytes;
      first[c] = static_cast<const char*>(rows) + first_row * row_bytes + (inside[c] ? column : 0);
    }
  }
  __device__ __forceinline__ const uint4* at(uint32_t row, int c) const {
    return reinterpret_cast<const uint4*>(first[c] + uint64_t{row_bytes} * row);
  }
  __device__ __forceinline__ uint4 load(uint32_t row, int c) const {
    return __ldg(at(row, c));
  }
};

template <int kCount>
__device__ __forceinline__ void load_entries(const int* from, int (&entries)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += kCount < 4 ? 2 : 4) {
    if constexpr (kCount < 4) {
      const int2 two = *reinterpret_cast<const int2*>(from + i);
      entries[i] = two.x;
      entries[i + 1] = two.y;
    } else {
      const int4 four = *reinterpret_cast<const int4*>(from + i);
      entries[i] = four.x;
      entries[i + 1] = four.y;
      entries[i + 2] = four.z;
      entries[i + 3] = four.w;
    }
  }
}

// Fetches all batches of kEntries and multiplies each, where kAhead while the next one's loads are under way.
template <class Batch, int kEntries, bool kAhead, class Fetch, class Multiply>
__device__ __forceinline__ void for_batches(int end, const Fetch& fetch, const Multiply& multiply) {
  Batch even, odd;
  if (kAhead && end > 0) fetch(even, 0);
#pragma unroll 1
  for (int first = 0; first < end; first += (kAhead ? 2 : 1) * kEntries) {
    if constexpr (!kAhead) {
      fetch(even, first);
      multiply(even, first);
    } else {
      if (first + kEntries < end) fetch(odd, first + kEntries);
      multiply(even, first);
      if (first + kEntries >= end) break;
      if (first + 2 * kEntries < end) fetch(even, first + 2 * kEntries);
      multiply(odd, first + kEntries);
    }
  }
}

// The entries' products of query and key in float32, on the tensor cores: the 16 rows of a product are keys,
// its 8 columns the queries, of which each key wants one. Lane l holds 16 bytes of every 64 of keys and
// query, so that a product's 16 dimensions are other ones than it takes them for, but the same of both.
template <class T, int kPanels, class Lists>
__device__ __forceinline__ void score_exactly(const Problem& p, int head, Lists& lists,
                                              const int (&listed)[Lists::kMost],
                                              const EightLists (&eights)[2]) {
  constexpr int kChunks = 2 * kPanels, kAtOnce = kPanels == 1 ? 4 : 2;  // keys of a quad in a batch
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane / 4;
  const LaneChunks<kChunks, 64> keys(p.k, int64_t{head / p.group} * p.kv_len, p, lane % 4);
  uint4 q[kChunks], next_q[kChunks];
  {
    const LaneChunks<kChunks, 64> queries(p.q, int64_t{head} * p.q_len, p, lane % 4);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const auto load = [&](int half) {
        const auto query = static_cast<uint32_t>(max(lists.query[row_of(half)], 0));
        return queries.inside[c] ? queries.load(query, c) : uint4{};
      };
      q[c] = load(0);
      next_q[c] = load(1);
    }
  }
  struct Batch {
    int entries[kAtOnce];
    uint4 keys[kAtOnce][kChunks];
  };
  const auto fetch = [&](Batch& batch, int first) {
    load_entries(&listed[first + kAtOnce * quad], batch.entries);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) batch.keys[i][c] = keys.load(key_of_entry(batch.entries[i]), c);
    }
  };
  const auto multiply = [&](const Batch& batch, int first) {
    if (first == eights[1].first) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) q[c] = next_q[c];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i += 2) {
      float products[4] = {};  // of two keys with two of the queries each
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 &a = batch.keys[i][c], &b = batch.keys[i + 1][c];
        arch::mma_m16n8k16<T>(products, {a.x, b.x, a.y, b.y}, q[c].x, q[c].y);
        arch::mma_m16n8k16<T>(products, {a.z, b.z, a.w, b.w}, q[c].z, q[c].w);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = row_of_entry(batch.entries[i + j]);
        if (lane % 4 == row / 2)
          lists.scores[first + kAtOnce * quad + i + j] = row % 2 != 0 ? products[2 * j + 1] : products[2 * j];
      }
    }
  };
  for_batches<Batch, 8 * kAtOnce, true>(eights[1].end, fetch, multiply);
  __syncwarp();
}

// A probability in two parts of 16 bits, the larger one low: as exact as float32 wants it.
template <class T>
__device__ __forceinline__ uint32_t split(float p) {
  const float rest = p - unpacked<T>(arch::pack_pair<T>(p, 0)).x;
  return arch::pack_pair<T>(p, rest);
}

// A row's tau and what comes of it. In units of <q, k>, relative to the row's largest score, whose p is at
// most 1: so that Newton's first step is short and rounds little, and sum p = 1 however large scores are.
struct Solution {
  float largest, bound, inverse;  // inverse: of the sum of the weights
  __device__ __forceinline__ bool has(float score) const { return score - largest > bound; }
  __device__ __forceinline__ float excess(float score, float gain) const {
    return gain * (score - largest - bound);
  }
};

// Solves the calling quad's two rows, whose lists have `length` entries from `start` on. bound: of each, from
// below, in units of <q, k>. Returns how many entries of each have p > 0.
template <class Lists>
__device__ __forceinline__ void solve_rows(const Lists& lists, const Entmax& entmax, const int (&start)[2],
                                           const int (&length)[2], const float (&lower)[2],
                                           Solution (&solution)[2], int (&entries)[2]) {
  constexpr int kHeld = 12;  // entries of a row in each lane's registers
  const int lane = static_cast<int>(threadIdx.x) % 4;
  float held[2][kHeld], largest[2], bound[2], sum[2];
  const auto score_of = [&](int half, int i) {
    return 4 * i + lane < length[half] ? lists.scores[start[half] + 4 * i + lane] : -INFINITY;
  };
  const int most = (max(length[0], length[1]) + 3) / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    largest[half] = -INFINITY;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[half][i] = score_of(half, i);
      largest[half] = fmaxf(largest[half], held[half][i]);
    }
    for (int i = kHeld; i < most; ++i) largest[half] = fmaxf(largest[half], score_of(half, i));
    largest[half] = quad_max(largest[half]);
    if (length[half] == 0) largest[half] = 0;
#pragma unroll
    for (float& score : held[half]) score -= largest[half];
    bound[half] = fmaxf(lower[half] - largest[half], bound_of_largest(0, entmax.gain));
  }
  entmax.visit([&](auto kind) {
#pragma unroll 1
    for (int step = 0; step < 40; ++step) {
      float slope[2] = {};
      const auto add = [&](int half, float score) {
        const float u = entmax.gain * (score - bound[half]), of_u = entmax.slope(kind, u);
        sum[half] = fmaf(fmaxf(u, 0.0f), of_u, sum[half]);
        slope[half] += of_u;
      };
      sum[0] = sum[1] = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        add(0, held[0][i]);
        add(1, held[1][i]);
      }
      for (int i = kHeld; i < most; ++i) {
        add(0, score_of(0, i) - largest[0]);
        add(1, score_of(1, i) - largest[1]);
      }
      bool moved = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = bound[half];
        sum[half] = quad_sum(sum[half]);
        bound[half] = newton(entmax.beta * entmax.gain, before, sum[half], quad_sum(slope[half]));
        moved |= bound[half] > before + 1e-7f * fabsf(before);
      }
      if (!__any_sync(kWarp, moved)) break;
    }
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    solution[half] = {largest[half], bound[half], 1 / sum[half]};
    entries[half] = 0;
#pragma unroll
    for (const float score : held[half]) entries[half] += score > bound[half] ? 1 : 0;
    for (int i = kHeld; i < most; ++i) entries[half] += solution[half].has(score_of(half, i)) ? 1 : 0;
    entries[half] = quad_sum(entries[half]);
  }
}

// Sums the rows' values, weighted by their probabilities (in two parts each), of which there are zeros behind
// each eight rows' entries.
//
// 16 entries are a tensor product's inner elements, its columns are the eight rows: an entry's probability
// stands in its own row's column, zeros elsewhere. (So a value that is not finite spoils the rows beside.)
// The product's 16 rows are two dimensions of each of eight chunks of 16 bytes.
template <class T, int kPanels, class Lists>
__device__ __forceinline__ void gather_values(const Problem& p, int head, const Lists& lists,
                                              const int (&listed)[Lists::kMost],
                                              const EightLists (&eights)[2]) {
  constexpr int kAtOnce = kPanels == 1 ? 8 : 4;  // entries of a lane in a batch
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane / 4, quarter = lane % 4;
  const LaneChunks<kPanels, 128> values(p.v, int64_t{head / p.group} * p.kv_len, p, column);
  float sums[kPanels][4][4] = {};
  const auto store = [&](int half) {
    const LaneChunks<kPanels, 128> out(p.out, int64_t{head} * p.q_len, p, column);
#pragma unroll
    for (int j = 0; j < 2; ++j) {  // the lane's sums are of two rows
      const int row = 2 * quarter + j + 8 * half, query = lists.query[row];
      if (query < 0 || is_left(lists.bound[row])) continue;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const auto& s = sums[panel];
        if (out.inside[panel])
          *const_cast<uint4*>(out.at(static_cast<uint32_t>(query), panel)) = {
              arch::pack_pair<T>(s[0][j], s[0][j + 2]), arch::pack_pair<T>(s[1][j], s[1][j + 2]),
              arch::pack_pair<T>(s[2][j], s[2][j + 2]), arch::pack_pair<T>(s[3][j], s[3][j + 2])};
      }
    }
#pragma unroll
    for (auto& panel : sums) {
#pragma unroll
      for (auto& word : panel) word[0] = word[1] = word[2] = word[3] = 0;
    }
  };
  struct Batch {
    uint4 values[kAtOnce][kPanels];
  };
  const auto fetch = [&](Batch& batch, int first) {
    int entries[kAtOnce];
    load_entries(&listed[first + kAtOnce * quarter], entries);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        batch.values[i][panel] = values.load(key_of_entry(entries[i]), panel);
    }
  };
  const auto multiply = [&](const Batch& batch, int first) {
    if (first == eights[1].first) store(0);
    int entries[kAtOnce];  // read again: they would take registers from when they were fetched on
    load_entries(&listed[first + kAtOnce * quarter], entries);
#pragma unroll
    for (int i = 0; i < kAtOnce; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(&lists.scores[first + kAtOnce * quarter + i]);
      uint32_t probability[4] = {four.x, four.y, four.z, four.w}, large[2], rest[2];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        probability[j] = row_of_entry(entries[i + j]) == column ? probability[j] : 0;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        large[j] = __byte_perm(probability[2 * j], probability[2 * j + 1], 0x5410);
        rest[j] = __byte_perm(probability[2 * j], probability[2 * j + 1], 0x7632);
      }
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const uint4 &a = batch.values[i][panel], &b = batch.values[i + 1][panel],
                    &c = batch.values[i + 2][panel], &d = batch.values[i + 3][panel];
        const uint32_t words[4][4] = {
            {a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}, {a.z, b.z, c.z, d.z}, {a.w, b.w, c.w, d.w}};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const uint32_t of_keys[4] = {
              __byte_perm(words[w][0], words[w][1], 0x5410), __byte_perm(words[w][0], words[w][1], 0x7632),
              __byte_perm(words[w][2], words[w][3], 0x5410), __byte_perm(words[w][2], words[w][3], 0x7632)};
          arch::mma_m16n8k16<T>(sums[panel][w], of_keys, large[0], large[1]);
          arch::mma_m16n8k16<T>(sums[panel][w], of_keys, rest[0], rest[1]);
        }
      }
    }
  };
  for_batches<Batch, 4 * kAtOnce, kPanels != 2>(eights[1].end, fetch, multiply);
  if (eights[1].end == eights[1].first) store(0);
  store(1);
}

// The warp's rows of a head; rows that are left to others are not touched. listed: room for the lists one
// after the other. Not inlined: what the screen's loop has no registers for would be spilled around the loop,
// and read back from L2 here.
template <class T, int kPanels, class Lists>
__device__ __noinline__ void finish_rows(const Problem& p, int head_index, const Head& head, Lists& lists,
                                         int (&listed)[Lists::kMost]) {
  const Entmax& entmax = head.entmax;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  EightLists eights[2];
  int start[2], length[2], entries[2];
  if (!join_columns(lists, listed, eights, start, length)) {
    if (lane < kWarpRows) close_row(lists, head, lane, kCrowded);
    __syncwarp();
    return;
  }
  score_exactly<T, kPanels>(p, head_index, lists, listed, eights);

  Solution solution[2];
  const float lower[2] = {lists.unit[row_of(0)] * lists.bound[row_of(0)],
                          lists.unit[row_of(1)] * lists.bound[row_of(1)]};
  solve_rows(lists, entmax, start, length, lower, solution, entries);
  if (lane % 4 < 2) {  // the quad's first lane for its first row, the second for the other
    const int row = row_of(lane % 4), query = lists.query[row];
    const Solution of_row = lane % 4 == 0 ? solution[0] : solution[1];
    lists.solution[row] = {of_row.largest, of_row.bound, of_row.inverse, 0};
    if (p.tau != nullptr && query >= 0 && !is_left(lists.bound[row]))
      p.tau[int64_t{head_index} * p.q_len + query] =
          lists.end[row] == 0 ? INFINITY : entmax.gain * (of_row.largest + of_row.bound);
  }
  int64_t stored = -1;  // where the warp's support starts
  if (p.support.columns != nullptr) {
    // Lane r < 16 looks after row r.
    const int of_first = __shfl_sync(kWarp, entries[0], lane % 8 * 4);
    const int of_second = __shfl_sync(kWarp, entries[1], lane % 8 * 4);
    const int count = lane < 8 ? of_first : lane < kWarpRows ? of_second : 0;
    const int64_t offset = allocate(p.support, count);
    stored = __shfl_sync(kWarp, offset, 0);
    if (lane < kWarpRows && lists.query[lane] >= 0 && !is_left(lists.bound[lane])) {
      const int64_t row = int64_t{head_index} * p.q_len + lists.query[lane];
      p.support.offsets[row] = offset;
      p.support.counts[row] = count;
    }
  }
  __syncwarp();

  // What has p = 0 is dropped, scores become probabilities.
  auto& probabilities = reinterpret_cast<uint32_t(&)[Lists::kMost]>(lists.scores);
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const EightLists all = half == 0 ? eights[0] : eights[1];
    EightLists kept;
    kept.end = kept.first = half == 0 ? 0 : full_batches(eights[0].end);
#pragma unroll 1
    for (int entry = all.first + lane; entry - lane < all.end; entry += 32) {
      const int one = listed[entry];
      const float score = lists.scores[entry];
      const float4 of_row = lists.solution[row_of_entry(one) + 8 * half];
      const Solution solved{of_row.x, of_row.y, of_row.z};
      const bool keeps = entry < all.end && solved.has(score);
      const unsigned keepers = __ballot_sync(kWarp, keeps);
      const int to = kept.end + __popc(keepers & ((1u << lane) - 1));
      const float excess = solved.excess(score, entmax.gain);
      __syncwarp();  // all have read
      if (keeps) {
        listed[to] = one;
        probabilities[to] = split<T>(solved.inverse * entmax.weight(excess));
        if (stored >= 0) {
          p.support.columns[stored + to - kept.first] = static_cast<int>(key_of_entry(one));
          p.support.excess[stored + to - kept.first] = excess;
        }
      }
      kept.end += __popc(keepers);
      __syncwarp();
    }
    if (stored >= 0) stored += kept.end - kept.first;
    const int behind = kept.end + lane;
    if (behind < full_batches(kept.end)) {
      listed[behind] = listed[kept.first];
      probabilities[behind] = 0;
    }
    (half == 0 ? eights[0] : eights[1]) = kept;
    __syncwarp();
  }
  gather_values<T, kPanels>(p, head_index, lists, listed, eights);
}

}  // namespace splash::gpu::entmax
