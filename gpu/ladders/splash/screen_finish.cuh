#pragma once
// The end of the screen. A warp scores the listed candidates of its own 16 rows exactly, selects the k_keep
// largest per block, solves for tau and gathers the values.

#include "gpu/ladders/splash/screen_list.cuh"

namespace splash::gpu::sparse {

// Scores the entries that have no score yet, four per quad at a time, so that a warp has 32 rows of K in
// flight. Each product is split at the last bit of the anchor (as Rump, Ogita, Oishi 2008 split sums): the
// part above adds up exactly, the part below in float, at four instructions per term. Scores are taken
// relative to the reference, so that large scores keep their differences.
template <int kPanels>
__device__ __forceinline__ void score_entries(const Problem& p, const Head& h, int query, ScreenRow& row) {
  constexpr int kChunks = 4 * kPanels;  // chunks of 16 dimensions, four per lane
  const int longest = __reduce_max_sync(kWarp, row.count - row.scored);
  const auto load = [&](const float* rows, int i, float4(&to)[kChunks]) {
    const float* const from = rows + static_cast<int64_t>(i) * p.head_dim + 4 * quad_lane();
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const bool there = 16 * c + 4 * quad_lane() < p.head_dim;
      to[c] = there ? __ldg(reinterpret_cast<const float4*>(from + 16 * c)) : float4{};
    }
  };
  float4 q[kChunks];
  if (longest > 0) load(h.q, min(query, p.q_len - 1), q);
  const float reference = copysignf(1.0f, p.scale) * row.reference;
#pragma unroll 1
  for (int i = 0; i < longest; i += 4) {
    float4 k[4][kChunks];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int place = row.scored + i + n;
      load(h.k, place < row.count ? row.keys[place] : 0, k[n]);
    }
    float high[4], low[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float sum = row.anchor, rest = 0;
      const auto add = [&](float x, float y) {
        const float after = fmaf(x, y, sum);
        rest += fmaf(x, y, -__fsub_rn(after, sum));
        sum = after;
      };
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        add(q[c].x, k[n][c].x);
        add(q[c].y, k[n][c].y);
        add(q[c].z, k[n][c].z);
        add(q[c].w, k[n][c].w);
      }
      high[n] = __fsub_rn(sum, row.anchor);
      low[n] = rest;
    }
    const float score = p.scale * (__fsub_rn(quad_sums(high), reference) + quad_sums(low));
    const int place = row.scored + i + quad_lane();
    if (place < row.count) row.scores[place] = score;
  }
  row.scored = row.count;
  __syncwarp();
}

// Keeps the k_keep largest candidates of each block; among equal scores it keeps the lower keys. It may run
// before all candidates are listed: every key that the selection keeps and that has p > 0 becomes a candidate
// at some time and is never dropped.
__device__ __forceinline__ void select_entries(const Problem& p, ScreenRow& row) {
  const int range = max(p.block, 64);  // powers of two; entries rise from range to range
  bool crowd = false;
  for_each_four(row.count, [&](int i) {
    crowd |= i + p.k_keep < row.count && (row.keys[i] ^ row.keys[i + p.k_keep]) < range;
  });
  if (!__any_sync(kWarp, crowd)) return;
  static_assert(kCandidates <= 4 * 32);
  uint32_t kept = 0;  // bit i / 4: this lane's candidate i
  for_each_four(row.count, [&](int i) {
    if (i >= row.count) return;
    const float score = row.scores[i];
    const int key = row.keys[i];
    int before = 0;
    for (int j = 0; j < row.count; ++j) {
      const int other = row.keys[j];
      const bool first = row.scores[j] > score || (row.scores[j] == score && other < key);
      before += (other ^ key) < p.block && first ? 1 : 0;
    }
    kept |= (before < p.k_keep ? 1U : 0U) << (i / 4);
  });
  __syncwarp();  // all have compared before keys move
  compact(row, [&](int i) { return (kept >> (i / 4) & 1) != 0; });
}

// Scores and selects what is listed. Finds the largest score and tau - max z of both rows.
template <int kPanels>
__device__ __forceinline__ void settle(const Problem& p, const Head& h, const Entmax& entmax, int query,
                                       ScreenRow (&rows)[2], float (&largest)[2], float (&offset)[2]) {
  constexpr int kFirst = 4;  // entries that a lane keeps in registers; it reads the rest again in every step
  float first[2][kFirst];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    ScreenRow& row = rows[half];
    score_entries<kPanels>(p, h, query + 8 * half, row);
    select_entries(p, row);
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < kFirst; ++n) {
      const int i = 4 * n + quad_lane();
      first[half][n] = i < row.count ? row.scores[i] : -INFINITY;
      most = fmaxf(most, first[half][n]);
    }
    for (int i = 4 * kFirst + quad_lane(); i < row.count; i += 4) most = fmaxf(most, row.scores[i]);
    __syncwarp();
    most = quad_max(most);
    largest[half] = most;
    offset[half] =
        fminf(0.0f, fmaxf(-1.0f, entmax.gain * (fabsf(p.scale) * (row.bound - row.reference) - most)));
#pragma unroll
    for (float& x : first[half]) x = x > -INFINITY ? entmax.gain * (x - most) : x;
  }
  solve(entmax, 24, offset, [&](int half, const auto& use) {
#pragma unroll
    for (const float z : first[half]) use(z);
    for (int i = 4 * kFirst + quad_lane(); i < rows[half].count; i += 4)
      use(entmax.gain * (rows[half].scores[i] - largest[half]));
    __syncwarp();
  });
}

// Raises the bounds from the listed candidates and drops the candidates that fall below them.
template <int kPanels>
__device__ __forceinline__ void tighten(const Problem& p, const Head& h, const Entmax& entmax, int query,
                                        ScreenRow (&rows)[2]) {
  float largest[2], offset[2];
  settle<kPanels>(p, h, entmax, query, rows, largest, offset);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    ScreenRow& row = rows[half];
    const float bound =
        largest[half] + __fdividef(offset[half] - 1e-5f, entmax.gain) - 1e-6f * fabsf(largest[half]);
    compact(row, [&](int i) { return row.scores[i] > bound; });
    const float product = row.reference + bound / fabsf(p.scale);
    row.bound = fmaxf(row.bound, product - 1e-6f * (fabsf(row.reference) + fabsf(product)));
    row.trigger = max(kCandidates - 16, min(row.count + 8, kCandidates - 4));
  }
}

// Turns a row's scores into weights. Returns 1 / (sum of the weights), or 0 if the sum is 0.
__device__ __forceinline__ float weigh(const Entmax& entmax, float largest, float offset,
                                       const ScreenRow& row) {
  float total = 0;
  for_each_four(row.count, [&](int i) {
    if (i >= row.count) return;
    const float weight = entmax.weight(entmax.gain * (row.scores[i] - largest) - offset);
    row.scores[i] = weight;
    total += weight;
  });
  total = quad_sum(total);
  return total > 0 ? 1 / total : 0.0f;
}

// Gathers the output of the warp's 16 rows: four rows at a time if eight lanes hold a row (head_dim up to
// 64), otherwise two. counts and factors belong to the lane's own two rows. A negative count leaves the row
// to exact_row.
template <int kPanels>
__device__ __forceinline__ void gather(const Problem& p, const Head& h, int first_query, const int* keys,
                                       const float* weights, const int (&counts)[2],
                                       const float (&factors)[2]) {
  constexpr int kLanes = 8 * kPanels, kAtOnce = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, d = lane % kLanes * 4;
#pragma unroll 1
  for (int r = 0; r < 16; r += 32 / kLanes) {
    const int row = r + lane / kLanes, source = row % 8 * 4;
    const int count = __shfl_sync(kWarp, r < 8 ? counts[0] : counts[1], source);
    const float factor = __shfl_sync(kWarp, r < 8 ? factors[0] : factors[1], source);
    float4 sum[2]{};
#pragma unroll 1
    for (int i = 0; i < count; i += kAtOnce) {
      alignas(16) float weight[kAtOnce];
      alignas(16) int key[kAtOnce];
      float4 value[kAtOnce][2];
#pragma unroll
      for (int n = 0; n < kAtOnce; n += 4) {
        const int at = row * kCandidatePitch + i + n;
        *reinterpret_cast<float4*>(weight + n) = *reinterpret_cast<const float4*>(weights + at);
        *reinterpret_cast<int4*>(key + n) = *reinterpret_cast<const int4*>(keys + at);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        weight[n] = i + n < count ? weight[n] : 0.0f;
        const float* const from = h.v + static_cast<int64_t>(key[n]) * p.head_dim + d;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const bool there = weight[n] > 0 && d + 4 * kLanes * part < p.head_dim;
          value[n][part] =
              there ? __ldg(reinterpret_cast<const float4*>(from + 4 * kLanes * part)) : float4{};
        }
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          sum[part].x = fmaf(weight[n], value[n][part].x, sum[part].x);
          sum[part].y = fmaf(weight[n], value[n][part].y, sum[part].y);
          sum[part].z = fmaf(weight[n], value[n][part].z, sum[part].z);
          sum[part].w = fmaf(weight[n], value[n][part].w, sum[part].w);
        }
      }
    }
    __syncwarp();
    if (count < 0 || first_query + row >= p.q_len) continue;
    float* const to = h.out + static_cast<int64_t>(first_query + row) * p.head_dim + d;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      if (d + 4 * kLanes * part < p.head_dim)
        *reinterpret_cast<float4*>(to + 4 * kLanes * part) = make_float4(
            factor * sum[part].x, factor * sum[part].y, factor * sum[part].z, factor * sum[part].w);
    }
  }
}

}  // namespace splash::gpu::sparse
