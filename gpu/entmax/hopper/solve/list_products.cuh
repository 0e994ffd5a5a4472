#pragma once
// Products of a warp's joined lists on tensor cores: keys with their queries, and probabilities with values.

#include <type_traits>

#include "gpu/arch/mma.cuh"
#include "gpu/entmax/hopper/solve/joined_lists.cuh"

namespace splash::gpu::entmax::hopper {

// Rows of a head: elements of type T, in kPanels panels of 64 dimensions. kWhole: the last panel is whole,
// too.
template <class T, int kPanelsOfRow, bool kWholePanels>
struct HeadRows {
  using Element = T;
  static constexpr int kPanels = kPanelsOfRow;
  static constexpr bool kWhole = kWholePanels;
};

// A head's rows of 16-bit elements in memory. The calling lane reads or writes 16 bytes of every kApart.
// kWhole: all of these lie inside the row. (A condition on each load costs some layers of models 3 % of
// forward.)
template <int kApart, bool kWhole>
struct LaneChunks {
  const char* first;  // of the head's first row
  uint32_t row_bytes;
  int inside;  // the lane's chunks per row

  __device__ __forceinline__ LaneChunks(const void* rows, int64_t first_row, const ForwardProblem& p,
                                        int chunk)
      : first(static_cast<const char*>(rows) + first_row * 2 * p.head_dim + 16 * chunk),
        row_bytes(2 * static_cast<uint32_t>(p.head_dim)),
        inside((2 * p.head_dim - 16 * chunk + kApart - 1) / kApart) {}
  __device__ __forceinline__ uint4* at(uint32_t row, int chunk) const {
    return reinterpret_cast<uint4*>(const_cast<char*>(first) + uint64_t{row_bytes} * row + kApart * chunk);
  }
  __device__ __forceinline__ bool has(int chunk) const { return kWhole || chunk < inside; }
  // Chunks from kFirst on; those outside the row are not written.
  template <int kFirst = 0, int kChunks>
  __device__ __forceinline__ void load(uint32_t row, uint4 (&chunks)[kChunks]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (has(kFirst + c)) chunks[c] = __ldg(at(row, kFirst + c));
    }
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

// Fetches batches of kEntries and multiplies each while the next batch's loads are in flight.
template <class Batch, int kEntries, class Fetch, class Multiply>
__device__ __forceinline__ void for_batches(int end, const Fetch& fetch, const Multiply& multiply) {
  Batch even{}, odd{};
  if (end > 0) fetch(even, 0);
#pragma unroll 1
  for (int first = 0; first < end; first += 2 * kEntries) {
    if (first + kEntries < end) fetch(odd, first + kEntries);
    multiply(even, first);
    if (first + kEntries >= end) break;
    if (first + 2 * kEntries < end) fetch(even, first + 2 * kEntries);
    multiply(odd, first + kEntries);
  }
}

// Exact scores <q, k> of the entries, summed in float32 on tensor cores. A product's 16 rows are keys, its 8
// columns queries; each key needs one of its 8 results. Lane l holds 16 bytes of every 64 of keys and query:
// a product's 16 dimensions are permuted, in the same way for both.
template <class Rows, class Lists>
__device__ __forceinline__ void score_exactly(const ForwardProblem& p, const Head& head, Lists& lists,
                                              const int (&listed)[Lists::kMost],
                                              const EntryRange (&ranges)[2]) {
  constexpr int kPanels = Rows::kPanels, kChunks = 2 * kPanels;
  constexpr int kAtOnce = kPanels == 1 ? 4 : 2;  // keys per quad and batch
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane / 4;
  const LaneChunks<64, Rows::kWhole> keys(p.k, int64_t{head.key_head} * p.kv_len, p, lane % 4);
  // The second eight rows' queries are asked for at once where there are registers, else when they are
  // needed.
  constexpr bool kAsksForBoth = kPanels == 1;
  uint4 q[kChunks] = {}, second_q[kAsksForBoth ? kChunks : 1] = {};
  const auto load_query = [&](int half, auto& to) {
    const LaneChunks<64, Rows::kWhole> queries(p.q, int64_t{head.index} * p.q_len, p, lane % 4);
    queries.load(static_cast<uint32_t>(max(lists.query[row_of(half)], 0)), to);
  };
  load_query(0, q);
  if constexpr (kAsksForBoth) load_query(1, second_q);
  const auto take_second_query = [&] {
    if constexpr (kAsksForBoth) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) q[c] = second_q[c];
    } else {
      load_query(1, q);
    }
  };
  struct Batch {
    int entries[kAtOnce];
    uint4 keys[kAtOnce][kChunks];
  };
  const auto fetch = [&](Batch& batch, int first) {
    load_entries(&listed[first + kAtOnce * quad], batch.entries);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) keys.load(key_of_entry(batch.entries[i]), batch.keys[i]);
  };
  const auto multiply = [&](const Batch& batch, int first) {
    if (first == ranges[1].first) take_second_query();
#pragma unroll
    for (int i = 0; i < kAtOnce; i += 2) {
      float products[4] = {};  // of two keys with two of the queries each
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 &a = batch.keys[i][c], &b = batch.keys[i + 1][c];
        arch::mma_m16n8k16<typename Rows::Element>(products, {a.x, b.x, a.y, b.y}, q[c].x, q[c].y);
        arch::mma_m16n8k16<typename Rows::Element>(products, {a.z, b.z, a.w, b.w}, q[c].z, q[c].w);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = row_of_entry(batch.entries[i + j]);
        if (lane % 4 == row / 2)
          lists.scores[first + kAtOnce * quad + i + j] = row % 2 != 0 ? products[2 * j + 1] : products[2 * j];
      }
    }
  };
  for_batches<Batch, 8 * kAtOnce>(ranges[1].end, fetch, multiply);
  __syncwarp();  // scores of all lanes, for solving
}

// Sums the rows' values, weighted by their probabilities (in two parts each); the padding has p = 0. writes:
// whether a row's output is written.
//
// 16 entries are a product's inner dimension, the eight rows its columns: an entry's probability stands in
// its own row's column, zeros in the others. (So a value that is not finite makes rows beside it NaN.) The
// product's 16 rows are two dimensions of each of eight chunks of 16 bytes.
//
// While a batch is multiplied, loads are in flight: the next batch's or, where registers are few (two
// panels), those of the other panel.
template <class Rows, class Lists, class Writes>
__device__ __forceinline__ void gather_values(const ForwardProblem& p, const Head& head, const Lists& lists,
                                              const int (&listed)[Lists::kMost],
                                              const EntryRange (&ranges)[2], const Writes& writes) {
  using T = typename Rows::Element;
  constexpr int kPanels = Rows::kPanels, kAtOnce = kPanels == 1 ? 8 : 4;  // entries per lane and batch
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane / 4, quarter = lane % 4;
  constexpr int kParts = kPanels == 2 ? 2 : 1, kOfPart = kPanels / kParts;
  const LaneChunks<128, Rows::kWhole> values(p.v, int64_t{head.key_head} * p.kv_len, p, column);
  float sums[kPanels][4][4] = {};
  const auto store = [&](int half) {
    const LaneChunks<128, Rows::kWhole> out(p.out, int64_t{head.index} * p.q_len, p, column);
#pragma unroll
    for (int j = 0; j < 2; ++j) {  // the lane's sums belong to two rows
      const int row = 2 * quarter + j + 8 * half, query = lists.query[row];
      if (!writes(row)) continue;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const auto& s = sums[panel];
        if (out.has(panel))
          *out.at(static_cast<uint32_t>(query), panel) = {
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
    uint4 values[kAtOnce][kOfPart];
  };
  const auto fetch_part = [&](auto part, Batch& batch, int first) {
    int entries[kAtOnce];
    load_entries(&listed[first + kAtOnce * quarter], entries);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      values.template load<decltype(part)::value * kOfPart>(key_of_entry(entries[i]), batch.values[i]);
  };
  const auto multiply_part = [&](auto part, const Batch& batch, int first) {
    constexpr int kPart = decltype(part)::value;
    if (kPart == 0 && first == ranges[1].first) store(0);
    int entries[kAtOnce];  // read again: kept since the fetch, they would take registers
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
      for (int panel = 0; panel < kOfPart; ++panel) {
        const uint4 &a = batch.values[i][panel], &b = batch.values[i + 1][panel],
                    &c = batch.values[i + 2][panel], &d = batch.values[i + 3][panel];
        const uint32_t words[4][4] = {
            {a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}, {a.z, b.z, c.z, d.z}, {a.w, b.w, c.w, d.w}};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const uint32_t value_pairs[4] = {
              __byte_perm(words[w][0], words[w][1], 0x5410), __byte_perm(words[w][0], words[w][1], 0x7632),
              __byte_perm(words[w][2], words[w][3], 0x5410), __byte_perm(words[w][2], words[w][3], 0x7632)};
          float(&sum)[4] = sums[kPart * kOfPart + panel][w];
          arch::mma_m16n8k16<T>(sum, value_pairs, large[0], large[1]);
          arch::mma_m16n8k16<T>(sum, value_pairs, rest[0], rest[1]);
        }
      }
    }
  };
  const int end = ranges[1].end;
  using First = std::integral_constant<int, 0>;
  using Second = std::integral_constant<int, 1>;
  if constexpr (kParts == 1) {
    for_batches<Batch, 4 * kAtOnce>(
        end, [&](Batch& batch, int first) { fetch_part(First{}, batch, first); },
        [&](const Batch& batch, int first) { multiply_part(First{}, batch, first); });
  } else {
    Batch even{}, odd{};
    if (end > 0) fetch_part(First{}, even, 0);
#pragma unroll 1
    for (int first = 0; first < end; first += 4 * kAtOnce) {
      fetch_part(Second{}, odd, first);
      multiply_part(First{}, even, first);
      if (first + 4 * kAtOnce < end) fetch_part(First{}, even, first + 4 * kAtOnce);
      multiply_part(Second{}, odd, first);
    }
  }
  if (ranges[1].end == ranges[1].first) store(0);
  store(1);
}

}  // namespace splash::gpu::entmax::hopper
