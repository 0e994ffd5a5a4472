#pragma once
// A block takes a row with more than kLongRow entries. As in rows.cu, but the block's groups share the row in
// chunks. Their sums meet in shared memory and are added in the order of the groups. There is no room to keep
// each entry's g, so it is computed again once delta is known.

#include "gpu/entmax/backward/entry.cuh"
#include "gpu/entmax/backward/group.cuh"
#include "gpu/entmax/backward/row_gradient.cuh"

namespace splash::gpu::entmax::backward {

constexpr int kRowThreads = 128;

template <int kLanes>
struct LongRow {
  static constexpr int kGroups = kRowThreads / kLanes;
  float group_sums[kGroups];
  float parts[kGroups][kLanes * 8];  // of dQ
};

// The sum of the groups' values, which all lanes of a group hold.
template <int kLanes>
__device__ float sum_groups(float x, float (&values)[kRowThreads / kLanes]) {
  __syncthreads();  // values may still be read
  if (threadIdx.x % kLanes == 0) values[threadIdx.x / kLanes] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kRowThreads / kLanes; ++i) sum += values[i];
  return sum;
}

template <class T, int kLanes, class Modifications>
__device__ __forceinline__ void long_row_gradient(const BackwardProblem& p, uint32_t row,
                                                  LongRow<kLanes>& shared) {
  constexpr int kGroups = LongRow<kLanes>::kGroups, kStep = kGroups * kChunk;
  auto& group_sums = shared.group_sums;
  auto& parts = shared.parts;
  const Group<T, kLanes> lanes(p);
  const uint32_t group = threadIdx.x / kLanes;
  const char *const values = lanes.part_of(p.v), *const keys = lanes.part_of(p.k);
  const uint32_t n = p.support.counts[row], head = row / p.q_len;
  const int64_t pool = p.support.offsets[row];
  const uint32_t first_key = head / p.group * p.kv_len;
  const Entmax entmax(p, head);
  const Modifications modifications(p, entmax, row, head);
  const auto key_of = [&](uint32_t entry) {  // past the last entry: the last one's
    return first_key + p.support.columns[pool + min(entry, n - 1)];
  };
  RowSums sums;
  float d_out[8];
  lanes.read_vector(p.d_out, row, d_out);
  for (uint32_t base = 0; base < n; base += kStep) {
    const uint32_t mine = base + group * kChunk + lanes.owned();
    const uint32_t key = key_of(mine);
    const float g = modifications.d_p(key - first_key, lanes.products(values, key, kChunk, d_out));
    if (mine < n) sums.add(entmax(p.support.excess[pool + mine]), g, p.tau_offsets != nullptr);
  }
  sums = {sum_groups<kLanes>(lanes.sum_entries(sums.w), group_sums),
          sum_groups<kLanes>(lanes.sum_entries(sums.u), group_sums),
          sum_groups<kLanes>(lanes.sum_entries(sums.ug), group_sums)};

  if (modifications.has_sink()) sums.add(entmax(modifications.sink()), 0);
  const RowGradient gradient(p, entmax, sums, n);
  const AlphaGradient alpha(gradient, sums, given_shift(p, entmax, row));
  float d_q[8] = {}, d_alpha = 0;
  for (uint32_t base = 0; base < n; base += kStep) {
    const uint32_t mine = base + group * kChunk + lanes.owned(), key = key_of(mine);
    const float g = modifications.d_p(key - first_key, lanes.products(values, key, kChunk, d_out));
    float ds = 0;
    if (mine < n) {
      const float excess = p.support.excess[pool + mine];
      const Weights x = entmax(excess);
      ds = gradient.score(x, g);
      if constexpr (std::is_same_v<Modifications, Modified>) {
        if (p.d_bias != nullptr && lanes.first_copy()) p.score_gradients[pool + mine] = ds;
      }
      ds *= modifications.slope(excess, key - first_key);
      if (p.d_alpha != nullptr) d_alpha += alpha(excess, x.u, gradient.centred(g));
      if (lanes.first_copy())
        entries_of<T>(p)[begin_of(p, key, row % p.rows_a_key >> p.slice_bits) + p.ranks[pool + mine]] = {
            p, {row % p.rows_a_key, gradient.probability(x) * modifications.weight(key - first_key), ds}};
    }
    lanes.add_rows(lanes.start(keys, key, kChunk), keys, key, ds, kChunk, d_q);
  }
  d_alpha = sum_groups<kLanes>(lanes.sum_entries(d_alpha), group_sums);
  if (modifications.has_sink())
    d_alpha += alpha(modifications.sink(), entmax(modifications.sink()).u, gradient.centred(0));
  if (p.d_alpha != nullptr && threadIdx.x == 0) p.row_alphas[row] = d_alpha;
  if constexpr (std::is_same_v<Modifications, Modified>) {
    if (threadIdx.x == 0 && p.row_sinks != nullptr)
      p.row_sinks[row] = sink_gradient(modifications, entmax, gradient);
  }

#pragma unroll
  for (int d = 0; d < 8; ++d) parts[group][lanes.lane * 8 + d] = d_q[d];
  __syncthreads();
  if (group == 0) {
    for (int other = 1; other < kGroups; ++other) {
#pragma unroll
      for (int d = 0; d < 8; ++d) d_q[d] += parts[other][lanes.lane * 8 + d];
    }
    lanes.store(p.d_q, row, d_q);
  }
  __syncthreads();  // parts may be written again
}
}  // namespace splash::gpu::entmax::backward
