// Rung 2, source 003's second proposal ("more blocks"): as many blocks as the device has multiprocessors,
// whatever the shape, in two launches. In the first, a block computes the scores of 16 queries and 64 keys
// over part of head_dim and stores these partial sums. In the second, a block owns 256 columns of the output.
// It adds the partial sums in a fixed order (no atomics, so the result is the same to the bit every time),
// computes the softmax again for itself, and multiplies it by its columns of V. A block's outputs now fit its
// registers at every head_dim.
//
// Arithmetic at head_dim 8192, 4 heads x 16 x 16, fp32: the scores take 4 x 32 parts = 128 blocks, each with
// 8 chunks of 32 dims (32 KB). The values take 4 x 32 = 128 blocks, each of which reads 16 keys x 1 KB of V
// and 32 KB of parts. The 8.4 MB in all need 2 us at 4.3 TB/s. 8 chunks x ~1000 cycles + 4 value steps x ~700
// + two launches ~ 4 + 2 + 3 us = 9 us. Rung 1 needs 140: 15 x.

#include <algorithm>

#include "gpu/ladders/large_dims/query_tile.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;

constexpr int kQueries = 16;

// How head_dim is split for the scores.
struct Split {
  int parts = 1, dims = 0;  // dims per part, a multiple of kChunk
};

Split split_of(const AttentionShape& s, int64_t multiprocessors) {
  const int64_t tiles = s.batch * s.q_heads * ceil_div(s.q_len, kQueries) * ceil_div(s.kv_len, kKeys);
  const int64_t wanted = std::max<int64_t>(1, multiprocessors / tiles);
  const int64_t dims = round_up(ceil_div(s.head_dim, wanted), 2 * kChunk);
  return {static_cast<int>(ceil_div(s.head_dim, dims)), static_cast<int>(dims)};
}

// parts [split.parts, heads, q_len, kv_len]: sums over each part of head_dim, not scaled.
template <class T>
__global__ void __launch_bounds__(kThreads)
    partial_scores(const Problem problem, const Split split, const T* q, const T* k, float* parts) {
  __shared__ OperandTiles<kQueries> operands;
  const int q_tiles = (problem.q_len + kQueries - 1) / kQueries,
            k_tiles = (problem.kv_len + kKeys - 1) / kKeys;
  const int part = blockIdx.x % split.parts, first_key = blockIdx.x / split.parts % k_tiles * kKeys;
  const int first_query = blockIdx.x / split.parts / k_tiles % q_tiles * kQueries;
  const int head = blockIdx.x / split.parts / k_tiles / q_tiles;
  if (first_key >= problem.key_tiles(first_query + kQueries - 1, kKeys) * kKeys)
    return;  // no query sees this tile

  const int head_dim = problem.head_dim, begin = part * split.dims, end = min(begin + split.dims, head_dim);
  const int q_rows = min(kQueries, problem.q_len - first_query),
            k_rows = min(kKeys, problem.kv_len - first_key);
  float scores[4] = {};
  add_scores(operands, q + problem.q_offset(head) + int64_t{first_query} * head_dim,
             k + problem.kv_offset(head) + int64_t{first_key} * head_dim, q_rows, k_rows, head_dim, begin,
             end, scores);
  const int query = threadIdx.x / 16, key = threadIdx.x % 16;
  if (query >= q_rows) return;
  parts += ((int64_t{part} * problem.heads + head) * problem.q_len + first_query + query) * problem.kv_len +
           first_key;
  for (int j = 0; j < 4; ++j) {
    if (key + 16 * j < k_rows) parts[key + 16 * j] = scores[j];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    combine_and_weigh(const Problem problem, const Split split, const float* parts, const T* v, T* out) {
  __shared__ alignas(16) ScoreTile<kQueries> tile;
  const int q_tiles = (problem.q_len + kQueries - 1) / kQueries,
            slices = (problem.head_dim + kThreads - 1) / kThreads;
  const int column = blockIdx.x % slices * kThreads + threadIdx.x;
  const int first_query = blockIdx.x / slices % q_tiles * kQueries, head = blockIdx.x / slices / q_tiles;
  const int head_dim = problem.head_dim, q_rows = min(kQueries, problem.q_len - first_query);
  const int64_t first_row = problem.q_offset(head) + int64_t{first_query} * head_dim;
  const int64_t part_stride = int64_t{problem.heads} * problem.q_len * problem.kv_len;
  parts += (int64_t{head} * problem.q_len + first_query) * problem.kv_len;

  reset(tile);
  float sums[kQueries] = {};
  const int tiles = problem.key_tiles(first_query + kQueries - 1, kKeys);
  for (int key_tile = 0; key_tile < tiles; ++key_tile) {
    const int first_key = key_tile * kKeys, k_rows = min(kKeys, problem.kv_len - first_key);
    __syncthreads();  // the previous tile's weights have been used
    for (int i = threadIdx.x; i < kQueries * kKeys; i += kThreads) {
      const int row = i / kKeys, key = i % kKeys;
      float score = -INFINITY;
      if (row < q_rows && first_key + key < problem.visible_keys(first_query + row)) {
        score = 0;
        const float* at = parts + int64_t{row} * problem.kv_len + first_key + key;
#pragma unroll 8
        for (int part = 0; part < split.parts; ++part) score += at[part * part_stride];
        score *= problem.scale;
      }
      tile.weights[row][key] = score;
    }
    online_softmax(tile);
    if (column < head_dim) {
      for (int row = 0; row < kQueries; ++row) sums[row] *= tile.correction[row];
      add_values(tile, v + problem.kv_offset(head) + int64_t{first_key} * head_dim + column, k_rows, head_dim,
                 sums);
    }
  }
  if (column >= head_dim) return;
#pragma unroll
  for (int row = 0; row < kQueries; ++row) {
    if (row < q_rows) {
      out[first_row + int64_t{row} * head_dim + column] =
          from_float<T>(sums[row] * normalization(tile.sum[row]));
    }
  }
}

template <class T>
std::vector<KernelLaunch> kernels(const AttentionShape& s, const Split& split) {
  const int64_t q_tiles = s.batch * s.q_heads * ceil_div(s.q_len, kQueries);
  return {{.name = "partial_scores",
           .function = reinterpret_cast<const void*>(partial_scores<T>),
           .blocks = q_tiles * ceil_div(s.kv_len, kKeys) * split.parts,
           .threads = kThreads},
          {.name = "combine_and_weigh",
           .function = reinterpret_cast<const void*>(combine_and_weigh<T>),
           .blocks = q_tiles * ceil_div(s.head_dim, kThreads),
           .threads = kThreads}};
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  const AttentionShape& s = spec.shape;
  const Split split = split_of(s, device.multiprocessors);
  const Tile tile{.q = kQueries, .k = kKeys, .d = split.dims};
  return {.tile = tile,
          .kernels = with_element(dtype, [&](auto element) { return kernels<decltype(element)>(s, split); }),
          .workspace_bytes = split.parts * s.rows() * s.kv_len * int64_t{sizeof(float)}};
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  const Split split{static_cast<int>(ceil_div(spec.shape.head_dim, plan.tile.d)), plan.tile.d};
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    auto* parts = static_cast<float*>(args.workspace);
    partial_scores<T><<<plan.kernels[0].blocks, kThreads, 0, args.stream>>>(
        Problem::of(spec), split, static_cast<const T*>(args.q), static_cast<const T*>(args.k), parts);
    check_launch("partial_scores");
    combine_and_weigh<T><<<plan.kernels[1].blocks, kThreads, 0, args.stream>>>(
        Problem::of(spec), split, parts, static_cast<const T*>(args.v), static_cast<T*>(args.out));
    check_launch("combine_and_weigh");
  });
}

// Partial scores lie in the workspace, one float per (part, head, query, key).
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const Problem p = Problem::of(spec);
  const TensorRows rows(spec.shape, dtype);
  const int q_tiles = static_cast<int>(ceil_div(p.q_len, kQueries)),
            k_tiles = static_cast<int>(ceil_div(p.kv_len, kKeys)), dims = plan.tile.d,
            parts = static_cast<int>(ceil_div(p.head_dim, dims)),
            slices = static_cast<int>(ceil_div(p.head_dim, kThreads));
  const auto score_at = [=](int part, int head, int query, int key) {
    return (((int64_t{part} * p.heads + head) * p.q_len + query) * p.kv_len + key) * int64_t{sizeof(float)};
  };
  const auto scores = [=](int64_t index, BlockTrace& trace) {
    const auto block = static_cast<int>(index);
    const int part = block % parts, first_key = block / parts % k_tiles * kKeys;
    const int first_query = block / parts / k_tiles % q_tiles * kQueries,
              head = block / parts / k_tiles / q_tiles;
    if (first_key >= p.key_tiles(first_query + kQueries - 1, kKeys) * kKeys) return;
    const TensorRows::Columns columns{int64_t{part} * dims, dims};
    rows.read_q(trace, head, first_query, kQueries, columns);
    rows.read_k(trace, head / p.group, first_key, kKeys, columns);
    trace.multiply(kQueries, kKeys, round_up(std::min(dims, p.head_dim - part * dims), kChunk));
    trace.next_step();
    trace.write(Operand::workspace, score_at(part, head, first_query, first_key),
                std::min(kKeys, p.kv_len - first_key) * int64_t{sizeof(float)},
                std::min(kQueries, p.q_len - first_query), p.kv_len * int64_t{sizeof(float)});
  };
  const auto values = [=](int64_t index, BlockTrace& trace) {
    const auto block = static_cast<int>(index);
    const int first_query = block / slices % q_tiles * kQueries, head = block / slices / q_tiles;
    const TensorRows::Columns columns{int64_t{block % slices} * kThreads, kThreads};
    const int width = std::min(kThreads, p.head_dim - block % slices * kThreads);
    const int tiles = p.key_tiles(first_query + kQueries - 1, kKeys);
    for (int tile = 0; tile < tiles; ++tile) {
      const int first_key = tile * kKeys;
      for (int query = first_query; query < std::min(first_query + kQueries, p.q_len); ++query) {
        trace.read(Operand::workspace, score_at(0, head, query, first_key),
                   std::min(kKeys, p.visible_keys(query) - first_key) * int64_t{sizeof(float)}, parts,
                   score_at(1, 0, 0, 0));
      }
      trace.next_step();
      rows.read_v(trace, head / p.group, first_key, kKeys, columns);
      trace.exponentiate(kQueries, kKeys, 1);  // by every block of a slice of the values
      trace.multiply(kQueries, width, round_up(std::min(kKeys, p.kv_len - first_key), 4));
      trace.next_step();
    }
    rows.write_out(trace, head, first_query, kQueries, columns);
  };
  return {
      {.kernel = "partial_scores", .blocks = plan.kernels[0].blocks, .through_l1 = true, .run = scores},
      {.kernel = "combine_and_weigh", .blocks = plan.kernels[1].blocks, .through_l1 = true, .run = values}};
}

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 2,
    .name = "split",
    .idea =
        "head_dim and keys are split over enough blocks to fill the device; parts are added in a fixed order",
    .finding =
        "128 blocks instead of 4: 20 times faster than rung 1 at 8192, 2.0 times faster than rung 0; 27 us "
        "against the 9 predicted: a chunk of 32 dims between two barriers costs more than the 1000 cycles "
        "assumed.",
    .limits =
        {
            .dtypes = {Dtype::f32, Dtype::bf16},
            .head_dim_max = 8192,
            .causal = true,
            .compute_capability = 75,
        },
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
