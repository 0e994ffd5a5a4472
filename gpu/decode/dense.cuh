#pragma once
// The dense pass: rows whose support is broad, for which a screen is no use. A team of blocks takes a unit
// and reads all of its keys once, then the values that any row keeps.
//
//   score all keys -> sync, the largest -> questions about the thresholds (dense_search.cuh), a sync each
//   -> probabilities -> sums of values by chunks of keys (dense_values.cuh) -> sync -> outputs
//
// A row that keeps more than most_listed() keys comes here from everywhere, and has its values summed by
// chunks. Others may come, too: because their unit was broad in its last step (StepInputs::broad), or because
// the screen left more keys than a list holds. Their values are added as solve.cuh adds them. So which way a
// row went does not show in its bits.

#include "gpu/arch/prefetch.cuh"
#include "gpu/decode/dense_values.cuh"
#include "gpu/decode/key_stage.cuh"
#include "gpu/decode/launch.cuh"
#include "gpu/decode/recent.cuh"
#include "gpu/decode/start.cuh"

namespace splash::gpu::decode {

// 16 keys at a time, on their way to a warp: 8 KB, and two at least.
template <class T, int kDim>
struct DenseStages {
  using Stage = KeyStage<T, kDim>;
  static constexpr int kCount = Stage::kBytes >= 4096 ? 2 : 8192 / Stage::kBytes;
  static_assert(kWarpGroups % kCount == 0);
  __align__(16) unsigned char of[kCount][Stage::kBytes];
};

// Of a block; the pages that it holds follow.
template <class T, int kDim>
struct DenseMemory {
  HeldUnit<T, kDim> unit;
  RowSums of_warp[kWarps];
  Search search[kRows];
  float largest_of_warp[kWarps][kRows], largest[kRows];
  uint32_t broad[kWarps];
  union {
    DenseStages<T, kDim> stages[kWarps];
    struct {
      __align__(16) HeldWeights weights[kWarps];
      PartSums<kDim> parts;
    } values;
  };
};

// Scores the block's keys for all rows, -inf where a row does not see a key. A warp has 128 keys of each
// chunk, one behind the other. Of rows 2 t and 2 t + 1 the lane gets the largest of its own.
template <class T, int kDim>
__device__ __forceinline__ void score_chunks(const Step& p, const Unit& unit, const HeldUnit<T, kDim>& held,
                                             const Chunks& chunks, int length, const DenseRoom& room,
                                             DenseStages<T, kDim>& stages, float (&largest)[2]) {
  using Stage = KeyStage<T, kDim>;
  constexpr int kCount = DenseStages<T, kDim>::kCount;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const Visible sees(p, unit, length, lane);
  const Queries<T, kDim> q(held.queries, lane);
  const int row = 2 * (lane % 4), own = 16 * kWarpGroups * warp;      // the warp's first key of a chunk
  const int seen_by_all = p.window > 0 ? 0 : length - (p.q_len - 1);  // keys below it
  unsigned exist = 0;                                                 // stages that hold keys, as bits
  const auto load = [&](int stage, int key) {
    const int page = key < length ? unit.page(p, key) : -1;
    exist = page >= 0 ? exist | 1u << stage : exist & ~(1u << stage);
    if (page >= 0)
      Stage::copy(stages.of[stage],
                  unit.in_page<T>(p, p.cache.keys, page, key + Stage::key_of(lane)) + Stage::element_of(lane),
                  p.cache.keys.token_stride, lane);
    arch::cp_async_commit();
  };
#pragma unroll
  for (int stage = 0; stage < kCount; ++stage)
    load(stage, chunks.begin < chunks.end ? chunks.key(chunks.begin) + own + 16 * stage : length);
#pragma unroll 1
  for (int chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const int first = chunks.key(chunk) + own,
              next = chunk + 1 < chunks.end ? chunks.key(chunk + 1) + own : length;
    float* const of_row = room.scores + row * room.pitch + chunk * kChunkKeys + own + lane / 4;
    float* const of_next_row = of_row + room.pitch;
#pragma unroll 4
    for (int group = 0; group < kWarpGroups; ++group) {
      const int stage = group % kCount, coming = group + kCount, key = first + 16 * group;
      arch::cp_async_wait<kCount - 1>();
      __syncwarp();
      KeyChunk<T, kDim> keys;
      Stage::read(stages.of[stage], lane, keys);
      const bool exists = (exist >> stage & 1) != 0;
      __syncwarp();  // all lanes have read them
      load(stage, coming < kWarpGroups ? first + 16 * coming : next + 16 * (coming - kWarpGroups));
      float d[4];
      keys.score(q, d);
      if (!exists || key + 16 > seen_by_all) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!exists || !sees(i % 2, key + lane / 4 + i / 2 * 8)) d[i] = -INFINITY;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) largest[i % 2] = arch::larger_or_nan(largest[i % 2], d[i]);
      if (row >= p.listed_rows) continue;
      of_row[16 * group] = d[0];
      of_row[16 * group + 8] = d[2];
      of_next_row[16 * group] = d[1];
      of_next_row[16 * group + 8] = d[3];
    }
  }
}

// Asks for the first values of the block, which come while thresholds are sought.
template <class T, int kDim>
__device__ __forceinline__ void prefetch_values(const Step& p, const Unit& unit, const Chunks& chunks,
                                                int length) {
  constexpr int kKeys = (128 << 10) / (kDim * int{sizeof(T)});  // 128 KB
  const int count = min(chunks.own_keys(), kKeys);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int key = chunks.key(chunks.begin + i / kChunkKeys) + i % kChunkKeys;
    const T* value = unit.key_of<T>(p, p.cache.values, key, length);
    if (value != nullptr) arch::prefetch<kDim* int{sizeof(T)}>(value);
  }
}

// Each row's largest score of all the team's, in each block. of_lane: rows 2 t and 2 t + 1.
template <class T, int kDim>
__device__ __forceinline__ void find_largest(const Team& team, float (&of_lane)[2], float* slots,
                                             DenseMemory<T, kDim>& memory) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2)
      of_lane[j] = arch::larger_or_nan(of_lane[j], __shfl_xor_sync(kAllLanes, of_lane[j], lanes));
    if (lane < 4) memory.largest_of_warp[warp][2 * lane + j] = of_lane[j];
  }
  __syncthreads();
  if (thread < kRows) {
    float largest = -INFINITY;
    for (const auto& rows : memory.largest_of_warp) largest = arch::larger_or_nan(largest, rows[thread]);
    slots[team.rank * kRows + thread] = largest;
  }
  team.sync();
  if (thread < kRows) {
    float largest = -INFINITY;
    for (int rank = 0; rank < team.size; ++rank)
      largest = arch::larger_or_nan(largest, slots[rank * kRows + thread]);
    memory.largest[thread] = largest;
  }
}

// Whether the unit's next step should come here at once: a row keeps more keys than are listed, or the rows
// together more than a 32nd of all.
__device__ __forceinline__ void remember(const Step& p, const Unit& unit, int keys, uint32_t summed,
                                         const Search (&search)[kRows]) {
  int kept = 0;
  for (const Search& row : search) kept += row.of_high.support;
  remember_broad(p, unit.index, summed != 0 || kept > keys / 32);
}

// Attends to all keys of a unit. All threads of the team call it.
template <class T, int kDim>
__device__ void attend_to_all(const Step& p, int index, const Team& team, DenseMemory<T, kDim>& memory,
                              int32_t* pages) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  Unit unit(p, index);
  const uint32_t wanted = p.overflowed[index];
  const int length = read_unit<T, kDim>(p, unit, memory.unit, pages);
  const Chunks chunks(p, max(length, 0), team);
  const DenseRoom room(p, static_cast<int>(blockIdx.x) / p.dense.team);
  float largest[2] = {-INFINITY, -INFINITY};
  score_chunks(p, unit, memory.unit, chunks, length, room, memory.stages[warp], largest);
  prefetch_values<T, kDim>(p, unit, chunks, length);
  find_largest(team, largest, room.largest, memory);

  const auto& entmax = memory.unit.entmax;
  const auto is_nan = [&](int row) {
    return length < 0 || !(entmax[row].gain > 0) || !(memory.largest[row] < INFINITY);
  };
  if (thread < kRows) {
    Search search;
    search.is_open = (wanted >> thread & 1) != 0 && !is_nan(thread) && memory.largest[thread] > -INFINITY;
    memory.search[thread] = search;
  }
  const int first = chunks.begin * kChunkKeys;  // of the block
  search_thresholds(entmax, memory.largest, room.scores + first, room.pitch, chunks.own_keys(), unit.rows,
                    team, room.asked, memory.of_warp, memory.search);
  uint32_t listed = 0, summed = 0;  // rows, as bits; the rest are not wanted, have no keys, or are NaN
#pragma unroll 1
  for (int row = 0; row < unit.rows; ++row) {
    const int support = memory.search[row].of_high.support;
    if (support == 0) continue;
    if (support > most_listed(kDim)) {
      summed |= 1u << row;
    } else {
      listed |= 1u << row;
      make_weights({entmax[row], memory.largest[row], memory.search[row]},
                   room.scores + row * room.pitch + first, room.masks + (row * room.pitch + first) / 32,
                   chunks.own_keys());
    }
  }
  const auto sum = [&]<int kMost>() {
    sum_values<T, kDim, kMost>(p, unit, chunks, room, summed, entmax, memory.largest, memory.search,
                               memory.values.weights[warp]);
  };
  if (p.listed_rows <= 4) {
    sum.template operator()<4>();
  } else {
    sum.template operator()<kRows>();
  }
  team.sync();

  // Rows are dealt to the team's blocks.
  for (int row = team.rank + warp * team.size; row < unit.rows; row += kWarps * team.size) {
    if ((listed >> row & 1) != 0) list_kept(p, row, chunks, room, lane);
  }
  __syncthreads();
#pragma unroll 1
  for (int row = team.rank; row < unit.rows; row += team.size) {
    if ((wanted >> row & 1) == 0) continue;
    const Search& search = memory.search[row];
    int parts = kParts;
    if ((summed >> row & 1) != 0) {
      add_chunks<T, kDim>(p, row, chunks.count, room, memory.values.parts);
    } else if ((listed >> row & 1) != 0) {
      const RowList list = room.list_of(p, row, search.of_high.support);
      gather_kept(list, row, chunks, room);
      __syncthreads();
      add_parts<T, kDim>(p, unit, list, warp, kWarps, length, lane, memory.values.parts);
      parts = parts_of(list.count, kDim);
    } else {
      if (warp == 0) write_unsolved<T, kDim>(p, unit, row, is_nan(row), lane);
      continue;
    }
    __syncthreads();
    if (warp == 0) {
      write_sums<T, kDim>(p, unit, row, memory.values.parts, parts, lane);
      const float z_max = entmax[row].gain * memory.largest[row];
      write_results(p, unit, row, z_max - search.found(), z_max, search.of_high.support, lane);
    }
    __syncthreads();  // the next row's parts overwrite these
  }
  if (team.rank == 0 && thread == 0) remember(p, unit, max(length, 0), summed, memory.search);
  team.sync();  // the next unit's scores overwrite these
}

// Units with rows that are left to the dense pass are dealt to the teams in turn. Where steps have a memory,
// the next one's first kernel may be launched before this one's wait. If units recall, its blocks only leave
// (step.cuh), and steps in a row take less time by that launch. Where teams are no clusters they take more
// (decision 0087).
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, dense_blocks_per_multiprocessor(kDim))
    dense_kernel(const __grid_constant__ Step p) {
  if (p.recent != nullptr && p.is_cluster) entmax::let_next_kernel_start();
  entmax::wait_for_kernels_before();
  const int thread = static_cast<int>(threadIdx.x);
  bool any = false;
#pragma unroll 8
  for (int unit = thread; unit < p.units; unit += kThreads) any |= p.overflowed[unit] != 0;
  if (__syncthreads_or(any ? 1 : 0) == 0) return;
  if (p.recent != nullptr && blockIdx.x == 0) change_states(p, thread, kThreads);

  auto& memory = *reinterpret_cast<DenseMemory<T, kDim>*>(dynamic_shared_memory());
  auto* const pages = reinterpret_cast<int32_t*>(&memory + 1);
  const Team team(p.dense.team);
  int seen = 0, next = static_cast<int>(blockIdx.x) / p.dense.team;  // of the broad units; next: the team's
#pragma unroll 1
  for (int first = 0; first < p.units; first += kThreads) {
    const int mine = first + thread;
    const uint32_t broad = __ballot_sync(kAllLanes, mine < p.units && (p.overflowed[mine] & kRowBits) != 0);
    __syncthreads();
    if (thread % 32 == 0) memory.broad[thread / 32] = broad;
    __syncthreads();
#pragma unroll 1
    for (int warp = 0; warp < kWarps; ++warp) {
      uint32_t left = memory.broad[warp];
      const int end = seen + __popc(left);
#pragma unroll 1
      for (; next < end; next += p.dense.teams) {
        for (; seen < next; ++seen) left &= left - 1;
        attend_to_all(p, first + 32 * warp + __ffs(static_cast<int>(left)) - 1, team, memory, pages);
      }
      seen = end;
    }
  }
}

}  // namespace splash::gpu::decode
