#pragma once
// Products of what a warp's joined lists hold, on the tensor cores: of keys with their queries, and of
// probabilities with values.

#include "gpu/arch/mma.cuh"
#include "gpu/entmax/joined_lists.cuh"

namespace splash::gpu::entmax {

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

}  // namespace splash::gpu::entmax
