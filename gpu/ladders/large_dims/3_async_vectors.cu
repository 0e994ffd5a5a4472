// Rung 3: rung 2's two launches with three changes. Asynchronous 16-byte copies (cp.async) fill shared
// memory, several chunks in flight. Register tiles let a value read from shared memory serve more products.
// V's first tile loads while the parts of the scores are still being added. A block takes 64 queries where
// there are enough of them.
//
// Arithmetic at head_dim 8192, 4 heads x 16 x 16, fp32: rung 2 waits for L2 once per chunk of 32 dims, 8
// times in the scores and 4 times in the values. Here 3 chunks are in flight, so there are ~3 waits + 1. Some
// 12 x 700 cycles become 4 x 700. That saves at most 5 us of 9; the launches (2 x ~1.3 us) stay. At B 8, H 4,
// 512 x 512, head_dim 2048: rung 2 needs 5 shared-memory reads (4 bytes per lane) for 4 products; a 4 x 4
// tile with 16-byte reads needs 8 for 64. That is 1 wavefront per 4 products instead of 5, so the fp32 units
// become the bound (~60 TFLOP/s: 1.15 ms for 69 GFLOP), while rung 2 stays near 5 ms.

#include <algorithm>

#include "gpu/arch/cp_async.cuh"
#include "gpu/ladders/large_dims/common.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;
using namespace arch;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

constexpr int kScoreKeys = 64, kScoreStages = 4;
constexpr int kValueKeys = 32, kValueStages = 2, kColumns = 128;

template <class T>
struct Row {  // a row of an operand's chunk: 128 bytes, padded by 16 so that eight rows use all banks
  static constexpr int kVector = 16 / sizeof(T), kVectors = 8, kDims = kVectors * kVector;
  uint4 vectors[kVectors + 1];
};

template <class T>
__device__ void unpack(const uint4& vector, float (&x)[16 / sizeof(T)]) {
  const T* elements = reinterpret_cast<const T*>(&vector);
#pragma unroll
  for (int i = 0; i < static_cast<int>(16 / sizeof(T)); ++i) x[i] = to_float(elements[i]);
}

__device__ inline float4 load4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
__device__ inline float4 load4(const __nv_bfloat16* p) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(p);
  const float2 low = __bfloat1622float2(pairs[0]), high = __bfloat1622float2(pairs[1]);
  return {low.x, low.y, high.x, high.y};
}

// What the host decides: how head_dim is cut for the scores, and the pitch of their rows in the workspace.
struct Split {
  int parts = 1, dims = 0, pitch = 0;
};

template <class T, int kQueries>
struct ScoreStage {
  Row<T> q[kQueries], k[kScoreKeys];
};

// parts [split.parts, heads, q_len, split.pitch]: sums over each part of head_dim, not scaled.
template <class T, int kQueries>
__global__ void __launch_bounds__(kThreads, 2)
    partial_scores(const Problem problem, const Split split, const T* q, const T* k, float* parts) {
  extern __shared__ uint4 shared[];
  auto* stages = reinterpret_cast<ScoreStage<T, kQueries>*>(shared);
  using Chunk = Row<T>;
  const int q_tiles = (problem.q_len + kQueries - 1) / kQueries;
  const int k_tiles = (problem.kv_len + kScoreKeys - 1) / kScoreKeys;
  const int part = blockIdx.x % split.parts, first_key = blockIdx.x / split.parts % k_tiles * kScoreKeys;
  const int first_query = blockIdx.x / split.parts / k_tiles % q_tiles * kQueries;
  const int head = blockIdx.x / split.parts / k_tiles / q_tiles;
  if (first_key >= problem.key_tiles(first_query + kQueries - 1, kScoreKeys) * kScoreKeys) return;

  const int head_dim = problem.head_dim, begin = part * split.dims, end = min(begin + split.dims, head_dim);
  const int q_rows = min(kQueries, problem.q_len - first_query),
            k_rows = min(kScoreKeys, problem.kv_len - first_key);
  q += problem.q_offset(head) + int64_t{first_query} * head_dim;
  k += problem.kv_offset(head) + int64_t{first_key} * head_dim;
  const int chunks = (end - begin + Chunk::kDims - 1) / Chunk::kDims;
  const int load_row = threadIdx.x / Chunk::kVectors, load_vector = threadIdx.x % Chunk::kVectors;
  const auto load = [&](int chunk) {
    const int dim = begin + chunk * Chunk::kDims + load_vector * Chunk::kVector;
    auto& stage = stages[chunk % kScoreStages];
    for (int row = load_row; row < kQueries + kScoreKeys; row += kThreads / Chunk::kVectors) {
      const bool is_q = row < kQueries;
      const int source_row = is_q ? row : row - kQueries;
      const bool inside = source_row < (is_q ? q_rows : k_rows) && dim < end;
      const T* source = is_q ? q : k;
      cp_async_16(&(is_q ? stage.q[row] : stage.k[source_row]).vectors[load_vector],
                  inside ? source + int64_t{source_row} * head_dim + dim : source, inside);
    }
  };
  for (int chunk = 0; chunk < kScoreStages - 1; ++chunk) {
    if (chunk < chunks) load(chunk);
    cp_async_commit();
  }

  constexpr int kRows = kQueries / 16;
  const int query = threadIdx.x / 16, key = threadIdx.x % 16;
  float scores[kRows][4] = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    cp_async_wait<kScoreStages - 2>();
    __syncthreads();  // this chunk has arrived for all; the previous one has been used
    if (chunk + kScoreStages - 1 < chunks) load(chunk + kScoreStages - 1);
    cp_async_commit();
    const auto& stage = stages[chunk % kScoreStages];
    float sums[kRows][4] = {};  // per chunk, as one sum over 8192 products would lose two digits
#pragma unroll 2
    for (int vector = 0; vector < Chunk::kVectors; ++vector) {
      float x[kRows][Chunk::kVector], y[Chunk::kVector];
#pragma unroll
      for (int i = 0; i < kRows; ++i) unpack<T>(stage.q[query + 16 * i].vectors[vector], x[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        unpack<T>(stage.k[key + 16 * j].vectors[vector], y);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int e = 0; e < Chunk::kVector; ++e) sums[i][j] += x[i][e] * y[e];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[i][j] += sums[i][j];
    }
  }
  parts += ((int64_t{part} * problem.heads + head) * problem.q_len + first_query) * split.pitch + first_key;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = query + 16 * i;
    for (int j = 0; j < 4; ++j) {
      if (row < q_rows && key + 16 * j < k_rows)
        parts[int64_t{row} * split.pitch + key + 16 * j] = scores[i][j];
    }
  }
}

template <class T, int kQueries>
struct ValueShared {
  T v[kValueStages][kValueKeys][kColumns];
  float weights[kQueries][kValueKeys];
  float max[kQueries], sum[kQueries], correction[kQueries];
};

// A thread accumulates kQueries / 8 rows by 4 columns.
template <class T, int kQueries>
__global__ void __launch_bounds__(kThreads, 2)
    combine_and_weigh(const Problem problem, const Split split, const float* parts, const T* v, T* out) {
  extern __shared__ uint4 shared_bytes[];
  auto& shared = *reinterpret_cast<ValueShared<T, kQueries>*>(shared_bytes);
  const int q_tiles = (problem.q_len + kQueries - 1) / kQueries,
            slices = (problem.head_dim + kColumns - 1) / kColumns;
  const int first_column = blockIdx.x % slices * kColumns;
  const int first_query = blockIdx.x / slices % q_tiles * kQueries, head = blockIdx.x / slices / q_tiles;
  const int head_dim = problem.head_dim, q_rows = min(kQueries, problem.q_len - first_query);
  const int64_t part_stride = int64_t{problem.heads} * problem.q_len * split.pitch;
  parts += (int64_t{head} * problem.q_len + first_query) * split.pitch;
  v += problem.kv_offset(head) + first_column;

  const auto load = [&](int key_tile) {
    constexpr int kVector = 16 / sizeof(T), kVectors = kColumns / kVector;
    for (int i = threadIdx.x; i < kValueKeys * kVectors; i += kThreads) {
      const int row = i / kVectors, column = i % kVectors * kVector, key = key_tile * kValueKeys + row;
      const bool inside = key < problem.kv_len && first_column + column < head_dim;
      cp_async_16(&shared.v[key_tile % kValueStages][row][column],
                  inside ? v + int64_t{key} * head_dim + column : v, inside);
    }
  };
  const int tiles = problem.key_tiles(first_query + kQueries - 1, kValueKeys);
  load(0);
  cp_async_commit();
  if (threadIdx.x < kQueries) {
    shared.max[threadIdx.x] = -INFINITY;
    shared.sum[threadIdx.x] = 0;
  }

  constexpr int kRows = kQueries / kWarps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sums[kRows][4] = {};
  for (int key_tile = 0; key_tile < tiles; ++key_tile) {
    __syncthreads();  // the tile before has been used: its weights, and the buffer that the next load fills
    if (key_tile + 1 < tiles) load(key_tile + 1);
    cp_async_commit();
    const int key = key_tile * kValueKeys + lane;
    for (int row = warp; row < kQueries;
         row += kWarps) {  // the warp of a row is the one that uses its weights
      float score = -INFINITY;
      if (row < q_rows && key < problem.visible_keys(first_query + row)) {
        score = 0;
        const float* at = parts + int64_t{row} * split.pitch + key;
#pragma unroll 8
        for (int part = 0; part < split.parts; ++part) score += at[part * part_stride];
        score *= problem.scale;
      }
      const float old_max = shared.max[row], max = fmaxf(old_max, warp_max(score));
      const float own = weight(score, max), sum = warp_sum(own);
      shared.weights[row][lane] = own;
      __syncwarp();  // all lanes have read the maximum before one writes it
      if (lane == 0) {
        shared.correction[row] = weight(old_max, max);
        shared.sum[row] = shared.sum[row] * shared.correction[row] + sum;
        shared.max[row] = max;
      }
    }
    cp_async_wait<1>();
    __syncthreads();  // this tile of V has arrived for all, and the weights are written
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] *= shared.correction[warp + kWarps * i];
    }
    const auto& tile = shared.v[key_tile % kValueStages];
#pragma unroll 2
    for (int first = 0; first < kValueKeys; first += 4) {
      float4 value[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) value[j] = load4(&tile[first + j][4 * lane]);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float4 weights = load4(&shared.weights[warp + kWarps * i][first]);
        const float each[4] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[i][0] += each[j] * value[j].x;
          sums[i][1] += each[j] * value[j].y;
          sums[i][2] += each[j] * value[j].z;
          sums[i][3] += each[j] * value[j].w;
        }
      }
    }
  }
  const int column = first_column + 4 * lane;
  if (column >= head_dim) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = warp + kWarps * i;
    if (row >= q_rows) continue;
    const float factor = normalization(shared.sum[row]);
    struct alignas(4 * sizeof(T)) Four {
      T x[4];
    } four;
#pragma unroll
    for (int j = 0; j < 4; ++j) four.x[j] = from_float<T>(sums[i][j] * factor);
    *reinterpret_cast<Four*>(out + problem.q_offset(head) + int64_t{first_query + row} * head_dim + column) =
        four;
  }
}

// 64 queries per block where that still fills the device.
bool wide(const AttentionShape& s, int64_t multiprocessors) {
  return s.q_len >= 64 &&
         s.batch * s.q_heads * ceil_div(s.q_len, 64) * ceil_div(s.head_dim, kColumns) >= multiprocessors;
}

// Calls f with the element type and the number of queries per block.
template <class F>
auto with_tile(Dtype dtype, int queries, F&& f) {
  return with_element(dtype, [&](auto element) {
    return queries == 64 ? f(element, std::integral_constant<int, 64>{})
                         : f(element, std::integral_constant<int, 16>{});
  });
}

Split split_of(const AttentionShape& s, const Tile& tile) {
  return {static_cast<int>(ceil_div(s.head_dim, tile.d)), tile.d, static_cast<int>(round_up(s.kv_len, 4))};
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  const AttentionShape& s = spec.shape;
  const int queries = wide(s, device.multiprocessors) ? 64 : 16;
  const int64_t q_tiles = s.batch * s.q_heads * ceil_div(s.q_len, queries);
  const int64_t wanted =
      std::max<int64_t>(1, device.multiprocessors / (q_tiles * ceil_div(s.kv_len, kScoreKeys)));
  const Tile tile{.q = queries,
                  .k = kScoreKeys,
                  .d = static_cast<int>(round_up(ceil_div(s.head_dim, wanted), 128)),
                  .stages = kScoreStages};
  const Split split = split_of(s, tile);
  Plan plan{.tile = tile,
            .workspace_bytes = int64_t{split.parts} * s.rows() * split.pitch * int64_t{sizeof(float)}};
  plan.kernels = with_tile(dtype, queries, [&](auto element, auto constant) -> std::vector<KernelLaunch> {
    using T = decltype(element);
    constexpr int kQueries = constant.value;
    return {{.name = "partial_scores",
             .function = reinterpret_cast<const void*>(partial_scores<T, kQueries>),
             .blocks = q_tiles * ceil_div(s.kv_len, kScoreKeys) * split.parts,
             .threads = kThreads,
             .shared_bytes = kScoreStages * int64_t{sizeof(ScoreStage<T, kQueries>)}},
            {.name = "combine_and_weigh",
             .function = reinterpret_cast<const void*>(combine_and_weigh<T, kQueries>),
             .blocks = q_tiles * ceil_div(s.head_dim, kColumns),
             .threads = kThreads,
             .shared_bytes = sizeof(ValueShared<T, kQueries>)}};
  });
  return plan;
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  const Problem problem = Problem::of(spec);
  const Split split = split_of(spec.shape, plan.tile);
  with_tile(dtype, plan.tile.q, [&](auto element, auto constant) {
    using T = decltype(element);
    constexpr int kQueries = constant.value;
    const KernelLaunch &scores = plan.kernels[0], &values = plan.kernels[1];
    auto* parts = static_cast<float*>(args.workspace);
    partial_scores<T, kQueries><<<scores.blocks, kThreads, scores.shared_bytes, args.stream>>>(
        problem, split, static_cast<const T*>(args.q), static_cast<const T*>(args.k), parts);
    check_launch("partial_scores");
    combine_and_weigh<T, kQueries><<<values.blocks, kThreads, values.shared_bytes, args.stream>>>(
        problem, split, parts, static_cast<const T*>(args.v), static_cast<T*>(args.out));
    check_launch("combine_and_weigh");
  });
}

// Partial scores lie in the workspace, one row of `pitch` floats per (part, head, query).
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const Problem p = Problem::of(spec);
  const TensorRows rows(spec.shape, dtype);
  const Split split = split_of(spec.shape, plan.tile);
  const int queries = plan.tile.q, chunk = static_cast<int>(128 / bytes_of(dtype));  // dims of a Row
  const int q_tiles = static_cast<int>(ceil_div(p.q_len, queries)),
            k_tiles = static_cast<int>(ceil_div(p.kv_len, kScoreKeys)),
            slices = static_cast<int>(ceil_div(p.head_dim, kColumns));
  const auto score_at = [=](int part, int head, int query, int key) {
    return (((int64_t{part} * p.heads + head) * p.q_len + query) * split.pitch + key) *
           int64_t{sizeof(float)};
  };
  const auto scores = [=](int64_t index, BlockTrace& trace) {
    const auto block = static_cast<int>(index);
    const int part = block % split.parts, first_key = block / split.parts % k_tiles * kScoreKeys;
    const int first_query = block / split.parts / k_tiles % q_tiles * queries,
              head = block / split.parts / k_tiles / q_tiles;
    if (first_key >= p.key_tiles(first_query + queries - 1, kScoreKeys) * kScoreKeys) return;
    const TensorRows::Columns columns{int64_t{part} * split.dims, split.dims};
    rows.read_q(trace, head, first_query, queries, columns);
    rows.read_k(trace, head / p.group, first_key, kScoreKeys, columns);
    trace.multiply(queries, kScoreKeys,
                   round_up(std::min(split.dims, p.head_dim - part * split.dims), chunk));
    trace.next_step();
    trace.write(Operand::workspace, score_at(part, head, first_query, first_key),
                std::min(kScoreKeys, p.kv_len - first_key) * int64_t{sizeof(float)},
                std::min(queries, p.q_len - first_query), split.pitch * int64_t{sizeof(float)});
  };
  const auto values = [=](int64_t index, BlockTrace& trace) {
    const auto block = static_cast<int>(index);
    const int first_query = block / slices % q_tiles * queries, head = block / slices / q_tiles;
    const TensorRows::Columns columns{int64_t{block % slices} * kColumns, kColumns};
    const int tiles = p.key_tiles(first_query + queries - 1, kValueKeys);
    for (int tile = 0; tile < tiles; ++tile) {
      const int first_key = tile * kValueKeys;
      for (int query = first_query; query < std::min(first_query + queries, p.q_len); ++query) {
        trace.read(Operand::workspace, score_at(0, head, query, first_key),
                   std::min(kValueKeys, p.visible_keys(query) - first_key) * int64_t{sizeof(float)},
                   split.parts, score_at(1, 0, 0, 0));
      }
      rows.read_v(trace, head / p.group, first_key, kValueKeys, columns);
      trace.exponentiate(queries, kValueKeys, 1);  // by every block of a slice of the values
      trace.multiply(queries, kColumns, kValueKeys);
      trace.next_step();
    }
    rows.write_out(trace, head, first_query, queries, columns);
  };
  return {{.kernel = "partial_scores", .blocks = plan.kernels[0].blocks, .run = scores},
          {.kernel = "combine_and_weigh", .blocks = plan.kernels[1].blocks, .run = values}};
}

const Variant kVariant{.ladder = "large_dims",
                       .rung = 3,
                       .name = "async-vectors",
                       .idea = "16-byte asynchronous copies, several in flight, and register tiles",
                       .finding =
                           "1.8 times faster than rung 2 at 8192 (15 us), 2.6 times with 64 heads, 1.8 times "
                           "where the chip is full: 21 TFLOP/s there, where cuBLAS does 48 in fp32.",
                       .limits =
                           {
                               .dtypes = {Dtype::f32, Dtype::bf16},
                               .head_dim_max = 8192,
                               .causal = true,
                               .compute_capability = 80,
                           },
                       .plan = plan,
                       .launch = launch,
                       .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
