#pragma once
// The document's three kernels, for any tile: rungs 0 and 1. They pass two things through device memory: one
// bit per (row, key) pair, and room for k_keep keys and scores per key block of every row.

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

// Finds the kept keys of one row of a tile. Calls use(first, kept) per key block: its first column in the
// tile and the lane's bits of keep_largest().
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
  float* const scores = k_tile;  // scores overwrite the keys
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
    const bool any = __syncthreads_or(visible);  // also a barrier: the previous tile's scores have been read
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

constexpr int kRowWarps = 4;  // rows, one per warp, of a block of the next two kernels

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
  const float reference = count > 0 ? product(keys[0], 0) : 0;  // so large scores keep their differences
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
  return plan;
}

// Kernel 1 writes the mask's words. Kernel 2 turns them into lists. Kernel 3 computes the kept keys' scores
// once more and reads values. The data decide how many values a query weighs; the trace counts one, the
// minimum. The data also decide which keys are kept; the trace spreads them evenly over the visible part of
// each key block.
inline std::vector<KernelTrace> trace_three(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  Intermediate to{};
  lay_out(spec, plan.tile.k, nullptr, to);
  const auto at = [](const auto* pointer) { return reinterpret_cast<int64_t>(pointer); };
  const Problem p = make_problem(spec);
  const TensorRows rows(spec.shape, dtype);
  const int64_t words = to.words * 4, room = to.room * 4, mask = at(to.mask), counts = at(to.counts),
                keys = at(to.keys), scores = at(to.scores), all_rows = spec.shape.rows();
  const auto build_mask = [=, tile = plan.tile, seen = SeenTiles(spec, plan.tile.q, plan.tile.k)](
                              int64_t block, BlockTrace& trace) mutable {
    const QueryTile queries = query_tile(p, block, tile.q);
    rows.read_q(trace, queries.head, queries.first, tile.q);
    trace_scores(trace, seen, queries, tile, p.head_dim, 1,
                 [&](int64_t key_tile) { rows.read_k(trace, queries.kv_head, key_tile * tile.k, tile.k); });
    trace.write(Operand::workspace, mask + (queries.head * p.q_len + queries.first) * words,
                std::min<int64_t>(tile.q, p.q_len - queries.first) * words);
  };
  // Calls use(first key, width, kept keys) for each key block before the end of the row.
  const auto kept_of = [=, &spec](int64_t row, const auto& use) {
    const RowMask sight =
        spec.mask.row(spec.shape, row / p.q_len / p.q_heads, row / p.q_len % p.q_heads, row % p.q_len);
    for (int64_t first = 0; first < sight.end; first += p.block) {
      RowMask block = sight;
      block.begin = first;
      block.end = std::min<int64_t>(sight.end, first + p.block);
      use(first, block.end - first, std::min<int64_t>(block.count(), p.k_keep));
    }
  };
  const auto count_of = [=](int64_t row) {
    int64_t count = 0;
    kept_of(row, [&](int64_t, int64_t, int64_t kept) { count += kept; });
    return count;
  };
  const auto for_each_row = [=](int64_t block, const auto& use) {
    for (int64_t row = block * kRowWarps; row < std::min((block + 1) * kRowWarps, all_rows); ++row) use(row);
  };
  const auto build_lookup = [=](int64_t block, BlockTrace& trace) {
    for_each_row(block, [&](int64_t row) {
      trace.read(Operand::workspace, mask + row * words, words);
      trace.write(Operand::workspace, keys + row * room, 4 * count_of(row));
      trace.write(Operand::workspace, counts + row * 4, 4);
    });
  };
  const auto forward = [=](int64_t block, BlockTrace& trace) {
    for_each_row(block, [&](int64_t row) {
      const int64_t head = row / p.q_len, query = row % p.q_len, kv_head = head / p.group;
      int64_t count = 0;
      rows.read_q(trace, head, query, 1);
      trace.read(Operand::workspace, counts + row * 4, 4);
      kept_of(row, [&](int64_t first, int64_t width, int64_t kept) {
        for (int64_t i = 0; i < kept; ++i) rows.read_k(trace, kv_head, first + i * width / kept, 1);
        count += kept;
      });
      trace.read(Operand::workspace, keys + row * room, 4 * count);
      trace.write(Operand::workspace, scores + row * room, 4 * count);
      trace.read(Operand::workspace, scores + row * room, 4 * count);
      trace.multiply(1, count, p.head_dim);
      if (count > 0) rows.read_one_value_each(trace, kv_head, query, 1);
      rows.write_out(trace, head, query, 1);
    });
  };
  return {{.kernel = "build_mask_kernel",
           .blocks = plan.kernels[0].blocks,
           .through_l1 = true,
           .run = build_mask},
          {.kernel = "build_lookup_kernel",
           .blocks = plan.kernels[1].blocks,
           .through_l1 = true,
           .run = build_lookup},
          {.kernel = "splash_forward_sparse",
           .blocks = plan.kernels[2].blocks,
           .through_l1 = true,
           .run = forward}};
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
