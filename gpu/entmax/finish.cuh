#pragma once
// After the screen: a warp computes the scores of the keys on its 16 rows' lists, exactly, solves the rows,
// stores their support and gathers their values.

#include "gpu/entmax/allocate.cuh"
#include "gpu/entmax/list_products.cuh"
#include "gpu/entmax/vectors.cuh"

namespace splash::gpu::entmax {

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
