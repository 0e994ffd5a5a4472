#pragma once
// Keys with more than kLongColumn entries, which place_entries has listed with their parts: a block takes a
// part of a key's rows, so that a key that all queries attend to costs no more than others. The block that is
// last sums the parts.

#include "gpu/entmax/backward/columns.cuh"
#include "gpu/entmax/backward/row_parts.cuh"
#include "gpu/entmax/schedule/scan.cuh"

namespace splash::gpu::entmax::backward {

template <int kLanes>
__device__ float4* partial_of(const BackwardProblem& p, uint32_t part) {
  return reinterpret_cast<float4*>(p.partials) + part * (4 * kLanes);
}

// Calls use(entry) for the key's entries of the slices in which the rows from `from` on and below `to` lie.
// By the whole block.
template <class T, class Use>
__device__ __forceinline__ void for_arrived(const BackwardProblem& p, uint32_t key, uint32_t from,
                                            uint32_t to, const Use& use) {
  constexpr int kFlight = 16;  // of a thread: a key that all rows attend to has many thousands
  const uint32_t first = begin_of_row(p, key, from),
                 last = begin_of_row(p, key, to + (1u << p.slice_bits) - 1);
  for (uint32_t i = first + threadIdx.x; i < last; i += kFlight * kColumnThreads) {
    StoredEntry<T> some[kFlight];
#pragma unroll
    for (int j = 0; j < kFlight; ++j) some[j] = entries_of<T>(p)[min(i + j * kColumnThreads, last - 1)];
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      if (i + j * kColumnThreads < last) use(some[j].entry(p));
    }
  }
}

// Which of 32 * kRowWindow rows attend to a key: so each entry knows its place among them.
struct AttendingRows {
  uint32_t bits[kRowWindow], before[kRowWindow];  // of 32 rows each; before: attending rows before these

  __device__ void add(uint32_t row) { atomicOr(&bits[row / 32], 1u << row % 32); }
  __device__ uint32_t place_of(uint32_t row) const {
    return before[row / 32] + __popc(bits[row / 32] & ((1u << row % 32) - 1));
  }
  // Returns how many there are. By the whole block, between two barriers.
  __device__ uint32_t count() {
    constexpr int kWords = kRowWindow / kColumnThreads;
    uint32_t mine = 0, all;
#pragma unroll
    for (int i = 0; i < kWords; ++i) mine += __popc(bits[kWords * threadIdx.x + i]);
    uint32_t place = exclusive_sum<kColumnThreads>(mine, all);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      before[kWords * threadIdx.x + i] = place;
      place += __popc(bits[kWords * threadIdx.x + i]);
    }
    return all;
  }
};

template <class T, int kLanes>
struct ColumnPart {
  using Block = Columns<T, kLanes>;
  union {
    float2 window[kRowWindow];  // p and ds; both 0: the row does not attend to the key, or adds nothing
    AttendingRows attending;
  };
  bool last;
  Placed entries[kRowWindow + Block::kFlight];
  float4 sums[Block::kGroups][4 * kLanes];
};

// The sum of what the groups hold, in the first one.
template <class T, int kLanes>
__device__ __forceinline__ ColumnSum sum_of_groups(const Columns<T, kLanes>& block, const ColumnSum& sum,
                                                   ColumnPart<T, kLanes>& shared) {
  sum.template put<kLanes>(shared.sums[block.group], block.lanes.lane);
  __syncthreads();
  ColumnSum total;
  if (block.group == 0) {
    for (const auto& of_group : shared.sums) total.template add<kLanes>(of_group, block.lanes.lane);
  }
  __syncthreads();  // sums may be written again
  return total;
}

// By the block whose part was the last of the key's: sums the parts, every kGroups-th by one group, then
// those of the groups, in order.
template <class T, int kLanes>
__device__ void sum_parts(const BackwardProblem& p, const Columns<T, kLanes>& block, const LongColumn& column,
                          ColumnPart<T, kLanes>& shared) {
  ColumnSum sum;
#pragma unroll 4
  for (uint32_t part = block.group; part < column.parts; part += Columns<T, kLanes>::kGroups)
    sum.template add<kLanes>(partial_of<kLanes>(p, column.first_partial + part), block.lanes.lane);
  const ColumnSum total = sum_of_groups(block, sum, shared);
  if (block.group == 0) block.write(column.key, total);
}

// A block takes one part of the rows that may attend to a key, and adds their entries in the order of the
// rows. It scans the key's entries of the slices that its rows lie in and keeps those of its part, kRowWindow
// at a time: of so few rows indexed by row, else by their places among the attending rows, which a scan
// before finds.
template <class T, int kLanes>
__device__ __forceinline__ void sum_part(const BackwardProblem& p, const Columns<T, kLanes>& block,
                                         uint32_t item, ColumnPart<T, kLanes>& shared) {
  constexpr int kRowsAThread = kRowWindow / kColumnThreads;
  constexpr uint32_t kMostRows = 32 * kRowWindow;
  auto& entries = shared.entries;
  const auto counts = [](float of_p, float of_ds) { return of_p != 0 || of_ds != 0; };
  LongColumn& listed = p.long_columns[p.column_parts[item]];
  const LongColumn column = listed;
  const uint32_t key = column.key, first_of_head = key / p.kv_len * p.rows_a_key;
  const RowParts parts(p, begin_of(p, key + 1) - begin_of(p, key));
  const uint32_t from = (item - column.first_part) * parts.windows * kRowWindow,
                 to = min(from + parts.windows * kRowWindow, p.rows_a_key);
  ColumnSum sum;
  const auto add_entries = [&](uint32_t count) {
    block.end_entries(entries, count);
    __syncthreads();
    block.template for_entries<true>(entries, block.run_of(count),
                                     [&](const Placed& placed, const auto& d_out, const auto& q) {
                                       if (placed.key != kNoKey)
                                         sum.add(placed.entry.p, d_out, placed.entry.ds, q);
                                     });
  };
  if (to - from <= kRowWindow) {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) shared.window[i * kColumnThreads + threadIdx.x] = {};
    __syncthreads();
    for_arrived<T>(p, key, from, to, [&](const Entry& entry) {
      if (entry.row - from < kRowWindow) shared.window[entry.row - from] = {entry.p, entry.ds};
    });
    __syncthreads();
    float2 mine[kRowsAThread];
    uint32_t attending = 0, count;
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      mine[i] = shared.window[kRowsAThread * threadIdx.x + i];
      attending += counts(mine[i].x, mine[i].y) ? 1 : 0;
    }
    uint32_t place = exclusive_sum<kColumnThreads>(attending, count);
    const uint32_t first_mine = first_of_head + from + kRowsAThread * threadIdx.x;
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      if (counts(mine[i].x, mine[i].y)) entries[place++] = {{first_mine + i, mine[i].x, mine[i].y}, 0};
    }
    add_entries(count);
  } else {
    for (uint32_t first_row = from; first_row < to; first_row += kMostRows) {
      const uint32_t rows = min(to - first_row, kMostRows);
      const auto for_rows = [&](const auto& use) {
        for_arrived<T>(p, key, first_row, first_row + rows, [&](const Entry& entry) {
          if (entry.row - first_row < rows && counts(entry.p, entry.ds)) use(entry);
        });
      };
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) shared.attending.bits[i * kColumnThreads + threadIdx.x] = 0;
      __syncthreads();
      for_rows([&](const Entry& entry) { shared.attending.add(entry.row - first_row); });
      __syncthreads();
      const uint32_t all = shared.attending.count();
      for (uint32_t taken = 0; taken < all; taken += kRowWindow) {
        __syncthreads();  // all know their places, and have added the entries before
        for_rows([&](const Entry& entry) {
          const uint32_t place = shared.attending.place_of(entry.row - first_row) - taken;
          if (place < kRowWindow) entries[place] = {{first_of_head + entry.row, entry.p, entry.ds}, 0};
        });
        add_entries(min(all - taken, static_cast<uint32_t>(kRowWindow)));
      }
      __syncthreads();  // the bits may be written again
    }
  }
  const ColumnSum total = sum_of_groups(block, sum, shared);
  if (column.parts == 1) {
    if (block.group == 0) block.write(key, total);
    return;
  }
  if (block.group == 0)
    total.template put<kLanes>(partial_of<kLanes>(p, column.first_partial + item - column.first_part),
                               block.lanes.lane);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last = atomicAdd(&listed.summed, 1u) == column.parts - 1;
    __threadfence();
  }
  __syncthreads();
  if (shared.last) sum_parts(p, block, column, shared);
}

}  // namespace splash::gpu::entmax::backward
