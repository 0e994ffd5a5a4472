// Rung 4: the whole computation in one launch. A cluster of up to 16 blocks takes sixteen queries of a head,
// and each block takes a slice of head_dim. A block loads its slices of Q, K and V at once, computes its part
// of the scores and sends each query row's part through distributed shared memory to the block that owns the
// row. The owner adds the parts in a fixed order, takes one step of the online softmax and sends the weights
// back to all blocks. Each block then multiplies the weights by its slice of V. Only Q, K, V and the output
// touch memory.
//
// Arithmetic at head_dim 8192, 4 heads x 16 x 16, fp32: 4 clusters of 16 = 64 blocks with 512 dims each:
// 96 KB in, 32 KB out. Loads at ~60 bytes per cycle into a multiprocessor 1600 cycles, latency ~1000; scores
// 16 x 16 x 512 products at 128 per cycle 1024; two exchanges ~600 each; values 1024; stores ~500. In all
// some 6000 cycles = 3.3 us, plus launch ~1.5 us. Rung 3 also pays a second launch and the round trip of the
// parts through L2: ~7 us.

#include "gpu/arch/cp_async.cuh"
#include "gpu/ladders/large_dims/cluster_softmax.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;
using namespace arch;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTileElements = 8192;  // of K or V, in shared memory

template <class T, int kKeys>
struct Shared {
  static constexpr int kSlice = kTileElements / kKeys;         // dims of this block, at most
  static constexpr int kPitch = kSlice + 16 / int{sizeof(T)};  // rows start 16 bytes apart in the banks
  static constexpr int kKeyGroups = kKeys / 16;                // a warp computes 16 x 16 scores...
  static constexpr int kDimGroups = kWarps / kKeyGroups;       // ...over its share of the slice
  T q[kQueries][kPitch], k[kKeys][kPitch], v[kKeys][kSlice];
  float parts[kDimGroups][kQueries][kKeys];  // of the scores, a warp's share of the slice each
  ClusterSoftmax<kKeys> softmax;
};

template <int kSlice, class T>
__device__ void load_rows(T* shared, int pitch, const T* global, int64_t stride, int rows, int valid_rows,
                          int dims) {
  constexpr int kVector = 16 / sizeof(T), kVectors = kSlice / kVector;
  for (int i = threadIdx.x; i < rows * kVectors; i += kThreads) {
    const int row = i / kVectors, dim = i % kVectors * kVector;
    const bool valid = row < valid_rows;
    if (dim < dims)
      cp_async_16(shared + row * pitch + dim, valid ? global + row * stride + dim : global, valid);
  }
}

// 16-byte vectors of T as floats, 4 elements a float4.
__device__ inline float4 four(const float* p, int i) {
  return reinterpret_cast<const float4*>(p)[i];
}
__device__ inline float4 four(const __nv_bfloat16* p, int i) {
  const uint2 pairs = reinterpret_cast<const uint2*>(p)[i];
  const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pairs.x));
  const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pairs.y));
  return {low.x, low.y, high.x, high.y};
}

// A warp's 16 x 16 scores over its share of the slice, into shared.parts. A lane has 4 x 2 of them,
// interleaved so that eight lanes read eight neighbouring rows.
template <class T, int kKeys>
__device__ void compute_parts(Shared<T, kKeys>& shared, int dims) {
  using S = Shared<T, kKeys>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_key = warp % S::kKeyGroups * 16, dim_group = warp / S::kKeyGroups;
  const int query = lane / 8, key = first_key + lane % 8;
  float scores[4][2] = {};
#pragma unroll 2
  for (int dim = dim_group * 8; dim < dims; dim += S::kDimGroups * 8) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4 x[4], y[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = four(&shared.q[query + 4 * i][dim], half);
#pragma unroll
      for (int j = 0; j < 2; ++j) y[j] = four(&shared.k[key + 8 * j][dim], half);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          scores[i][j] += x[i].x * y[j].x + x[i].y * y[j].y + x[i].z * y[j].z + x[i].w * y[j].w;
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) shared.parts[dim_group][query + 4 * i][key + 8 * j] = scores[i][j];
  }
}

template <class T, int kKeys>
__global__ void __launch_bounds__(kThreads)
    one_launch(const Problem problem, const int slice, const T* q, const T* k, const T* v, T* out) {
  extern __shared__ uint4 shared_bytes[];
  using S = Shared<T, kKeys>;
  S& shared = *reinterpret_cast<S*>(shared_bytes);
  init_exchange(shared.softmax);
  let_next_kernel_come();
  const int rank = cluster_rank(), log_rows = log_rows_of_block();
  const int head = cluster_index(), first_query = blockIdx.y * kQueries;
  const int64_t head_dim = problem.head_dim;
  const int first_dim = rank * slice, dims = max(0, min(slice, problem.head_dim - first_dim));
  const int q_rows = min(kQueries, problem.q_len - first_query);
  q += problem.q_offset(head) + first_query * head_dim + first_dim;
  out += problem.q_offset(head) + first_query * head_dim + first_dim;
  k += problem.kv_offset(head) + first_dim;
  v += problem.kv_offset(head) + first_dim;

  const auto load_k = [&](int first_key) {
    load_rows<S::kSlice>(&shared.k[0][0], S::kPitch, k + first_key * head_dim, head_dim, kKeys,
                         problem.kv_len - first_key, dims);
    cp_async_commit();
  };
  const auto load_v = [&](int first_key) {
    load_rows<S::kSlice>(&shared.v[0][0], S::kSlice, v + first_key * head_dim, head_dim, kKeys,
                         problem.kv_len - first_key, dims);
    cp_async_commit();
  };
  cluster_wait();  // here, where it costs nothing
  follow_previous_kernel();
  load_rows<S::kSlice>(&shared.q[0][0], S::kPitch, q, head_dim, kQueries, q_rows, dims);
  load_k(0);
  load_v(0);

  // A thread accumulates kRows queries by 4 columns.
  constexpr int kColumnGroups = S::kSlice / 4, kRows = kQueries * kColumnGroups / kThreads;
  const int column = threadIdx.x % kColumnGroups * 4, first_row = threadIdx.x / kColumnGroups * kRows;
  float sums[kRows][4] = {};

  const int tiles = problem.key_tiles(first_query + kQueries - 1, kKeys);
  for (int key_tile = 0; key_tile < tiles; ++key_tile) {
    const int first_key = key_tile * kKeys;
    expect_exchange(shared.softmax);
    cp_async_wait<1>();
    __syncthreads();  // Q and K have arrived
    compute_parts(shared, dims);
    __syncthreads();  // the parts are written, and K has been used
    if (key_tile + 1 < tiles) load_k(first_key + kKeys);
    exchange(shared.softmax, shared.parts, S::kDimGroups, log_rows, problem, first_query, first_key,
             key_tile % 2);
    wait_for_factors(shared.softmax, key_tile % 2);
    if (key_tile + 1 < tiles) {
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();  // V is here
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] *= shared.softmax.factors[first_row + i].x;
    }
    if (column < dims) {
#pragma unroll 2
      for (int key = 0; key < kKeys; key += 4) {
        float4 value[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) value[j] = four(&shared.v[key + j][column], 0);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const float4 weights = four(&shared.softmax.weights[first_row + i][key], 0);
          sums[i][0] += weights.x * value[0].x + weights.y * value[1].x + weights.z * value[2].x +
                        weights.w * value[3].x;
          sums[i][1] += weights.x * value[0].y + weights.y * value[1].y + weights.z * value[2].y +
                        weights.w * value[3].y;
          sums[i][2] += weights.x * value[0].z + weights.y * value[1].z + weights.z * value[2].z +
                        weights.w * value[3].z;
          sums[i][3] += weights.x * value[0].w + weights.y * value[1].w + weights.z * value[2].w +
                        weights.w * value[3].w;
        }
      }
    }
    if (key_tile + 1 < tiles) {
      __syncthreads();  // V has been used
      load_v(first_key + kKeys);
    }
  }
  if (column >= dims) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first_row + i;
    if (row >= q_rows) continue;
    const float factor = normalization(shared.softmax.factors[row].y);
    struct alignas(4 * sizeof(T)) Four {
      T x[4];
    } result;
#pragma unroll
    for (int j = 0; j < 4; ++j) result.x[j] = from_float<T>(sums[i][j] * factor);
    *reinterpret_cast<Four*>(out + row * head_dim + column) = result;
  }
}

// Slices of at least 64 dims, at most 16 blocks per cluster.
int ranks_of(const AttentionShape& s) {
  int ranks = 2;
  while (ranks < 16 && s.head_dim > 64 * ranks) ranks *= 2;
  return ranks;
}

Tile tile_of(const AttentionShape& s) {
  const auto slice = static_cast<int>(round_up(ceil_div(s.head_dim, ranks_of(s)), 8));
  return {.q = kQueries, .k = slice <= 128 ? 64 : slice <= 256 ? 32 : 16, .d = slice};
}

template <class F>
auto with_kernel(Dtype dtype, int keys, F&& f) {
  return with_element(dtype, [&](auto element) {
    using T = decltype(element);
    return keys == 64   ? f(element, one_launch<T, 64>, sizeof(Shared<T, 64>))
           : keys == 32 ? f(element, one_launch<T, 32>, sizeof(Shared<T, 32>))
                        : f(element, one_launch<T, 16>, sizeof(Shared<T, 16>));
  });
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& /*device*/) {
  const AttentionShape& s = spec.shape;
  Plan plan{.tile = tile_of(s)};
  plan.kernels =
      with_kernel(dtype, plan.tile.k, [&](auto, auto* kernel, size_t bytes) -> std::vector<KernelLaunch> {
        return {{.name = "one_launch",
                 .function = reinterpret_cast<const void*>(kernel),
                 .blocks = s.batch * s.q_heads * ceil_div(s.q_len, kQueries) * ranks_of(s),
                 .threads = kThreads,
                 .shared_bytes = static_cast<int64_t>(bytes)}};
      });
  return plan;
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  const Tile tile = tile_of(spec.shape);
  with_kernel(dtype, tile.k, [&](auto element, auto* kernel, size_t) {
    using T = decltype(element);
    launch_early(kernel, plan.kernels[0], {ranks_of(spec.shape), ceil_div(spec.shape.q_len, kQueries)},
                 args.stream, Problem::of(spec), tile.d, static_cast<const T*>(args.q),
                 static_cast<const T*>(args.k), static_cast<const T*>(args.v), static_cast<T*>(args.out));
  });
}

std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_clusters(spec, dtype, plan, {.ranks = ranks_of(spec.shape), .dims = spec.shape.head_dim});
}

const Variant kVariant{.ladder = "large_dims",
                       .rung = 4,
                       .name = "cluster",
                       .idea =
                           "one launch: a cluster's blocks share head_dim and reduce the scores through "
                           "distributed shared memory",
                       .finding =
                           "7 to 8.5 us at 8192 against 15: one launch, and the parts make no round trip "
                           "through L2; the exchange is "
                           "by st.async, for the release of barrier.cluster is a membar of the whole device.",
                       .limits =
                           {
                               .dtypes = {Dtype::f32, Dtype::bf16},
                               .head_dim_max = 8192,
                               .causal = true,
                               .compute_capability = 90,
                           },
                       .plan = plan,
                       .launch = launch,
                       .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
