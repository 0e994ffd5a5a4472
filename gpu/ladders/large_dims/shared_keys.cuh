#pragma once
// The kernel of rung 1 (16 queries per block), rung 8 (8 queries) and rung 9 (4 queries).

#include <algorithm>

#include "gpu/ladders/large_dims/query_tile.cuh"

namespace splash::gpu::large_dims {

// `accumulated` [heads, q_len, head_dim] holds the unnormalised output between key tiles. For fp32 it is
// `out` itself. It is not used where one tile holds all keys.
template <int kQueries, class T>
__global__ void __launch_bounds__(kThreads)
    shared_keys(const Problem problem, const T* q, const T* k, const T* v, float* accumulated, T* out) {
  __shared__ alignas(16) ScoreTile<kQueries> tile;
  __shared__ OperandTiles<kQueries> operands;
  const int q_tiles = (problem.q_len + kQueries - 1) / kQueries;
  const int head = blockIdx.x / q_tiles, first_query = blockIdx.x % q_tiles * kQueries;
  const int head_dim = problem.head_dim, q_rows = min(kQueries, problem.q_len - first_query);
  const int64_t first_row = problem.q_offset(head) + int64_t{first_query} * head_dim;
  constexpr int kWidth = kThreadsOfQuery<kQueries>, kCount = kKeysOfThread<kQueries>;
  const int query = threadIdx.x / kWidth, key = threadIdx.x % kWidth;

  reset(tile);
  const int tiles = problem.key_tiles(first_query + kQueries - 1, kKeys);
  for (int key_tile = 0; key_tile < tiles; ++key_tile) {
    const int first_key = key_tile * kKeys, k_rows = min(kKeys, problem.kv_len - first_key);
    const int64_t first_key_row = problem.kv_offset(head) + int64_t{first_key} * head_dim;
    float scores[kCount] = {};
    add_scores(operands, q + first_row, k + first_key_row, q_rows, k_rows, head_dim, 0, head_dim, scores);
    for (int j = 0; j < kCount; ++j) {
      const bool visible = first_key + key + kWidth * j < problem.visible_keys(first_query + query);
      tile.weights[query][key + kWidth * j] = visible ? scores[j] * problem.scale : -INFINITY;
    }
    online_softmax(tile);

    for (int column = threadIdx.x; column < head_dim; column += kThreads) {
      float sums[kQueries] = {};
      for (int row = 0; key_tile > 0 && row < q_rows; ++row)
        sums[row] = accumulated[first_row + int64_t{row} * head_dim + column] * tile.correction[row];
      add_values(tile, v + first_key_row + column, k_rows, head_dim, sums);
      for (int row = 0; row < q_rows; ++row) {
        const int64_t at = first_row + int64_t{row} * head_dim + column;
        if (key_tile + 1 < tiles) {
          accumulated[at] = sums[row];
        } else {
          out[at] = from_float<T>(sums[row] * normalization(tile.sum[row]));
        }
      }
    }
    __syncthreads();  // the weights have been used
  }
}

template <int kQueries>
Plan plan_shared_keys(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& /*device*/) {
  const AttentionShape& s = spec.shape;
  const Tile tile{.q = kQueries, .k = kKeys, .d = kChunk};
  const bool scratch = dtype != Dtype::f32 && s.kv_len > kKeys;
  return {.tile = tile,
          .kernels = {{.name = kQueries == 16  ? "sixteen_queries"
                               : kQueries == 8 ? "eight_queries"
                                               : "four_queries",
                       .function = with_element(dtype,
                                                [](auto element) {
                                                  return reinterpret_cast<const void*>(
                                                      shared_keys<kQueries, decltype(element)>);
                                                }),
                       .blocks = s.batch * s.q_heads * ceil_div(s.q_len, kQueries),
                       .threads = kThreads}},
          .workspace_bytes = scratch ? s.rows() * s.head_dim * int64_t{sizeof(float)} : 0};
}

template <int kQueries>
void launch_shared_keys(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    shared_keys<kQueries, T><<<plan.kernels[0].blocks, kThreads, 0, args.stream>>>(
        Problem::of(spec), static_cast<const T*>(args.q), static_cast<const T*>(args.k),
        static_cast<const T*>(args.v), static_cast<float*>(dtype == Dtype::f32 ? args.out : args.workspace),
        static_cast<T*>(args.out));
  });
  check_launch(plan.kernels[0].name.c_str());
}

// The query rows do not fit in L1 beside K and V, so each key tile reads them again. Each key tile also
// reads and writes the accumulated outputs.
inline std::vector<KernelTrace> trace_shared_keys(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const auto sums = dtype == Dtype::f32 ? Operand::out : Operand::workspace;
  const auto run = [sums, queries = plan.tile.q, p = Problem::of(spec), rows = TensorRows(spec.shape, dtype)](
                       int64_t block, BlockTrace& trace) {
    const int q_tiles = static_cast<int>(ceil_div(p.q_len, queries));
    const int head = static_cast<int>(block) / q_tiles, kv_head = head / p.group;
    const int first_query = static_cast<int>(block) % q_tiles * queries;
    const int tiles = p.key_tiles(first_query + queries - 1, kKeys);
    const int64_t row_bytes = p.head_dim * int64_t{sizeof(float)},
                  at = (int64_t{head} * p.q_len + first_query) * row_bytes,
                  bytes = std::min(queries, p.q_len - first_query) * row_bytes;
    for (int tile = 0; tile < tiles; ++tile) {
      const int first_key = tile * kKeys, k_rows = std::min(kKeys, p.kv_len - first_key);
      rows.read_q(trace, head, first_query, queries);
      rows.read_k(trace, kv_head, first_key, kKeys);
      trace.multiply(queries, kKeys, round_up(p.head_dim, kChunk));
      trace.exponentiate(queries, kKeys, 1);
      trace.next_step();
      if (tile > 0) trace.read(sums, at, bytes);
      rows.read_v(trace, kv_head, first_key, kKeys);
      trace.multiply(queries, p.head_dim, round_up(k_rows, 4));
      trace.next_step();
      if (tile + 1 < tiles) trace.write(sums, at, bytes);
    }
    rows.write_out(trace, head, first_query, queries);
  };
  return {{.kernel = plan.kernels[0].name, .blocks = plan.kernels[0].blocks, .through_l1 = true, .run = run}};
}

}  // namespace splash::gpu::large_dims
