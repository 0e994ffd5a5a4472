#pragma once
// The document's three kernels, for any tile: rungs 0 and 1. Between them, in device memory: a bit a (row,
// key) pair, and room for k_keep keys and scores of every key block of every row.

#include "gpu/cuda_check.h"
#include "gpu/ladders/splash/row_list.cuh"
#include "gpu/ladders/splash/selection.cuh"

namespace splash::gpu::sparse {

struct Intermediate {
  uint32_t* mask;  // [rows, words]
  int* counts;     // [rows]
  int* keys;       // [rows, room], rising
  float* scores;   // [rows, room]
  int64_t words, room;
};

// Scores of one row and tile -> which are kept; calls use(first place of the block, kept).
template <int kWords, class Use>
__device__ __forceinline__ void select_row(const Problem& p, const Sight& sight, const float* scores,
                                           int first_key, int keys, const Use& use) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = 0; first < keys; first += p.block) {
    uint32_t order[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int place = 32 * w + lane;
      const bool visible = place < p.block && sight.sees(first_key + first + place);
      order[w] = visible ? order_of(scores[first + place], true) : kHidden;
    }
    use(first, keep_largest(order, p.k_keep));
  }
}

template <int kQueries, int kKeys, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) build_mask_kernel(const Problem p, const Intermediate to) {
  constexpr int kWarpRows = kQueries / kWarps;
  extern __shared__ __align__(16) float shared[];
  float* const q_tile = shared;
  float* const k_tile = shared + kQueries * row_pitch(p.head_dim);
  float* const scores = k_tile;  // in turn
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const int first =
      (static_cast<int>(gridDim.x / p.heads) - 1 - static_cast<int>(blockIdx.x) / p.heads) * kQueries;
  const Head h = head_of(p, head);
  const Sight tile_sight = sight_of_tile(p, h, first, kQueries);
  load_rows(PlainLoads{h.q}, first, kQueries, p.q_len, p.head_dim, q_tile);

  for (int key = 0; key < p.kv_len; key += kKeys) {
    bool visible = false;
    for (int j = static_cast<int>(threadIdx.x); j < kKeys; j += 32 * kWarps)
      visible |= tile_sight.sees(key + j);
    const bool any = __syncthreads_or(visible);  // also: the scores of the tile before have been read
    if (any) {
      load_rows(PlainLoads{h.k}, key, kKeys, p.kv_len, p.head_dim, k_tile);
      __syncthreads();
      float s[kWarpRows / 2][kKeys / 16];
      multiply(q_tile + warp * kWarpRows * row_pitch(p.head_dim), k_tile, p.head_dim, s);
      __syncthreads();  // all have read the keys that the scores overwrite
      store_scores(s, p.scale, scores + warp * kWarpRows * kKeys, kKeys);
      __syncwarp();
    }
    for (int r = 0; r < kWarpRows; ++r) {
      const int query = first + warp * kWarpRows + r;
      if (query >= p.q_len) break;
      uint32_t* const mask = to.mask + (static_cast<int64_t>(head) * p.q_len + query) * to.words + key / 32;
      if (!any) {
        if (lane < kKeys / 32) mask[lane] = 0;
        continue;
      }
      const auto write = [&](int place, uint32_t kept) {
        for (int w = 0; 32 * w < p.block; ++w) {
          const uint32_t word = __ballot_sync(kWarp, kept >> w & 1);
          if (lane == 0) mask[place / 32 + w] = word;
        }
      };
      const float* const row = scores + (warp * kWarpRows + r) * kKeys;
      const Sight sight = sight_of(p, h, query);
      if (kKeys <= 64 || p.block <= 64) {
        select_row<2>(p, sight, row, key, kKeys, write);
      } else {
        select_row<kKeys / 32>(p, sight, row, key, kKeys, write);
      }
    }
  }
}

constexpr int kRowWarps = 4;  // rows a block of the two kernels that follow

static __global__ void __launch_bounds__(32 * kRowWarps)
    build_lookup_kernel(const Problem p, const Intermediate to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  if (row >= static_cast<int64_t>(p.heads) * p.q_len) return;
  int count = 0;
  for (int64_t first = 0; first < to.words; first += 32) {
    uint32_t word = first + lane < to.words ? to.mask[row * to.words + first + lane] : 0;
    int before = __popc(word);
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int other = __shfl_up_sync(kWarp, before, lanes);
      before += lane >= lanes ? other : 0;
    }
    int* place = to.keys + row * to.room + count + before - __popc(word);
    for (; word != 0; word &= word - 1)
      *place++ = static_cast<int>(32 * (first + lane)) + __ffs(static_cast<int>(word)) - 1;
    count += __shfl_sync(kWarp, before, 31);
  }
  if (lane == 0) to.counts[row] = count;
}

static __global__ void __launch_bounds__(32 * kRowWarps)
    splash_forward_sparse(const Problem p, const Intermediate to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  if (row >= static_cast<int64_t>(p.heads) * p.q_len) return;
  const Head h = head_of(p, static_cast<int>(row / p.q_len));
  const int query = static_cast<int>(row % p.q_len), count = to.counts[row];
  const int* const keys = to.keys + row * to.room;
  float* const scores = to.scores + row * to.room;
  const float* const q = h.q + static_cast<int64_t>(query) * p.head_dim;
  const auto product = [&](int key, float start) {
    return dot(q, h.k + static_cast<int64_t>(key) * p.head_dim, p.head_dim, start);
  };
  const float reference = count > 0 ? product(keys[0], 0) : 0;  // large scores keep their differences
  bool poisoned = false;
  for (int i = lane; i < count; i += 32) {
    scores[i] = p.scale * product(keys[i], -reference);
    poisoned |= !(scores[i] < INFINITY);
  }
  finish_row(p, h, PlainLoads{h.v}, 0, query, scores, keys, count, __any_sync(kWarp, poisoned));
}

inline int64_t padded(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Carves the workspace up; returns its size.
inline int64_t lay_out(const AttentionSpec& spec, int64_t key_tile, void* workspace, Intermediate& to) {
  const Problem p = make_problem(spec);
  const int64_t rows = spec.shape.rows();
  to.words = ceil_div(p.kv_len, key_tile) * key_tile / 32;
  to.room = ceil_div(p.kv_len, p.block) * p.k_keep;
  int64_t bytes = 0;
  const auto take = [&](int64_t size) {
    void* const address = static_cast<char*>(workspace) + bytes;
    bytes += padded(size);
    return address;
  };
  to.mask = static_cast<uint32_t*>(take(rows * to.words * 4));
  to.counts = static_cast<int*>(take(rows * 4));
  to.keys = static_cast<int*>(take(rows * to.room * 4));
  to.scores = static_cast<float*>(take(rows * to.room * 4));
  return bytes;
}

template <int kQueries, int kKeys, int kWarps>
Plan plan_three_launches(const AttentionSpec& spec, Dtype, const DeviceInfo&) {
  Intermediate to{};
  const int64_t pitch = row_pitch(static_cast<int>(spec.shape.head_dim)), rows = spec.shape.rows();
  const int64_t shared = 4 * (kQueries * pitch + std::max<int64_t>(kKeys * pitch, kQueries * kKeys));
  const int64_t heads = spec.shape.batch * spec.shape.q_heads;
  Plan plan;
  plan.tile = {kQueries, kKeys};
  plan.kernels = {
      {"build_mask_kernel", reinterpret_cast<const void*>(&build_mask_kernel<kQueries, kKeys, kWarps>),
       ceil_div(spec.shape.q_len, kQueries) * heads, 32 * kWarps, shared},
      {"build_lookup_kernel", reinterpret_cast<const void*>(&build_lookup_kernel), ceil_div(rows, kRowWarps),
       32 * kRowWarps, 0},
      {"splash_forward_sparse", reinterpret_cast<const void*>(&splash_forward_sparse),
       ceil_div(rows, kRowWarps), 32 * kRowWarps, 0}};
  plan.workspace_bytes = lay_out(spec, kKeys, nullptr, to);
  plan.work = score_work(spec, plan.tile, spec.shape.head_dim, MathUnit::fp32);
  plan.work.executed_flops += plan.work.useful_flops / 2;  // the kept scores, once more
  plan.work.dram_bytes += 2.0 * static_cast<double>(plan.workspace_bytes);
  return plan;
}

template <int kQueries, int kKeys, int kWarps>
void launch_three(const AttentionSpec& spec, Dtype, const Plan& plan, const Arguments& arguments) {
  const Problem p = make_problem(spec, arguments);
  Intermediate to{};
  lay_out(spec, kKeys, arguments.workspace, to);
  const auto& kernels = plan.kernels;
  build_mask_kernel<kQueries, kKeys, kWarps><<<static_cast<unsigned>(kernels[0].blocks), kernels[0].threads,
                                               kernels[0].shared_bytes, arguments.stream>>>(p, to);
  check_launch("build_mask_kernel");
  build_lookup_kernel<<<static_cast<unsigned>(kernels[1].blocks), kernels[1].threads, 0, arguments.stream>>>(
      p, to);
  check_launch("build_lookup_kernel");
  splash_forward_sparse<<<static_cast<unsigned>(kernels[2].blocks), kernels[2].threads, 0,
                          arguments.stream>>>(p, to);
  check_launch("splash_forward_sparse");
}

}  // namespace splash::gpu::sparse
