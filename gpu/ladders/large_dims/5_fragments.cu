// Rung 5: rung 4's cluster without shared memory for the operands. A warp takes 64 dims and reads Q, K and V
// straight from memory as the fragments of mma.sync. The products do not care which dim or key has which
// index, so the indices are chosen such that a lane's elements lie side by side and every read is 16 bytes.
// All reads are issued before the first use. fp32 stays fp32: each operand is split into two tf32, and three
// products recover 22 bits of the 24.
//
// Arithmetic at head_dim 8192, 4 heads x 16 x 16, fp32: rung 4 spends ~3000 cycles on shared-memory reads for
// a block's scores (each product's operands come by 16-byte reads, four wavefronts each) and ~1500 for the
// values. Here a warp issues 48 + 48 products of 16 x 8 x 8 and ~500 instructions around them: ~600 cycles.
// Add one trip to memory (~1000), two exchanges (~800 each) and the stores: 3500 cycles = 2 us, plus the
// launch.
//
// At 4096 dims the kernel is a chain of waits, and 100 cycles of it are 1.6 %. So the kernel does what it can
// while the previous kernel still runs (addresses; the cluster's barrier, which invalidates L1). The one warp
// that all others wait for sends the weights before it sums them. Products go to several sums, so that none
// queues behind another. Expect 3.75 us to become 3.25. Observed on the way: scores after 1900 cycles, their
// parts sent at 2400 and in the owner's hands at 2650; weights sent at 3300 and everywhere 80 cycles later;
// the last store at 4400. A launch adds 950.

#include "gpu/arch/mma.cuh"
#include "gpu/ladders/large_dims/cluster_softmax.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;
using namespace arch;

constexpr int kMaxWarps = 16;

// The scores over a warp's dims. Shared memory holds a ClusterSoftmax, then one of these per warp of the
// block.
template <int kKeys>
using Part = float[kQueries][kKeys + 8];

// Lane l of a warp is lane t = l % 4 of the group of four g = l / 4, as in mma.cuh. A vector holds 16 bytes
// of a row.
template <class T>
struct Fragments {
  static constexpr int kVector = 16 / sizeof(T), kDims = 8 * kVector;
  // A lane reads four rows of V per 16 keys: the key that row i of these is.
  static __device__ int key(int t, int i) { return sizeof(T) == 4 ? t + 4 * i : 2 * t + i % 2 + i / 2 * 8; }
  // The vector of a row of V that column n of the products stands for. The results give a lane columns 2t and
  // 2t + 1. These are vectors t and t + 4, so the stores of four lanes are contiguous.
  static constexpr int vector(int n) { return n / 2 + n % 2 * 4; }
};

__device__ inline uint4 load16(const void* address, bool valid) {
  return valid ? __ldcg(static_cast<const uint4*>(address)) : make_uint4(0, 0, 0, 0);
}

// Forces the compiler to compute the value here; it would otherwise do so after a later wait.
template <class T>
__device__ void ready(T*& address) {
  asm volatile("" : "+l"(address));
}
__device__ inline void ready(int& value) {
  asm volatile("" : "+r"(value));
}

struct Split {
  uint32_t high, low;
};
__device__ inline Split split(uint32_t bits) {
  const uint32_t high = bits & 0xffffe000;
  return {high, __float_as_uint(__uint_as_float(bits) - __uint_as_float(high))};
}

// main + high_low + low_high += a b over 8 dims, with a and b split. There are three sums because a chain of
// products on one sum waits ~30 cycles for each. Infinite operands make the corrections NaN, so whoever adds
// the sums takes `main` alone where it is infinite.
__device__ inline void mma_split(float (&main)[4], float (&high_low)[4], float (&low_high)[4],
                                 const Split (&a)[4], Split b0, Split b1) {
  const uint32_t high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
  const uint32_t low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
  mma_m16n8k8_tf32(main, high, b0.high, b1.high);
  mma_m16n8k8_tf32(high_low, high, b0.low, b1.low);
  mma_m16n8k8_tf32(low_high, low, b0.high, b1.high);
}

// The scores of 16 queries and 16 keys over a warp's dims, in mma's layout; the indices of q, k and scores
// count rows g and g + 8, and keys g and g + 8.
template <class T>
__device__ void multiply_scores(const uint4 (&q)[2][2], const uint4 (&k)[2][2], float (&scores)[2][4]) {
  float high_low[2][4] = {}, low_high[2][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) scores[0][i] = scores[1][i] = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t a[2][4] = {{q[0][i].x, q[0][i].y, q[0][i].z, q[0][i].w},
                              {q[1][i].x, q[1][i].y, q[1][i].z, q[1][i].w}};
    const uint32_t b[2][4] = {{k[0][i].x, k[0][i].y, k[0][i].z, k[0][i].w},
                              {k[1][i].x, k[1][i].y, k[1][i].z, k[1][i].w}};
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      if constexpr (sizeof(T) == 4) {
        const Split rows[4] = {split(a[0][j]), split(a[1][j]), split(a[0][j + 1]), split(a[1][j + 1])};
#pragma unroll
        for (int half = 0; half < 2; ++half)
          mma_split(scores[half], high_low[half], low_high[half], rows, split(b[half][j]),
                    split(b[half][j + 1]));
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          mma_m16n8k16<T>(scores[half], {a[0][j], a[1][j], a[0][j + 1], a[1][j + 1]}, b[half][j],
                          b[half][j + 1]);
      }
    }
  }
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[0][i] += isinf(scores[0][i]) ? 0.0f : high_low[0][i] + low_high[0][i];
      scores[1][i] += isinf(scores[1][i]) ? 0.0f : high_low[1][i] + low_high[1][i];
    }
  }
}

// sums += weights [16, 16 keys] v, for a lane's columns: component c of its vector is column g of product c.
template <class T, int kPitch>
__device__ void multiply_values(const float (&weights)[kQueries][kPitch], int first_key, const uint4 (&v)[4],
                                float (&sums)[Fragments<T>::kVector][4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  uint32_t rows[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    rows[i][0] = v[i].x, rows[i][1] = v[i].y, rows[i][2] = v[i].z, rows[i][3] = v[i].w;
  if constexpr (sizeof(T) == 4) {
    float corrections[4][4] = {};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const auto part = [&](int row, int key) {
        return split(__float_as_uint(weights[row][first_key + 8 * step + key]));
      };
      const Split a[4] = {part(g, t), part(g + 8, t), part(g, t + 4), part(g + 8, t + 4)};
#pragma unroll
      for (int c = 0; c < 4; ++c)
        mma_split(sums[c], corrections[c], corrections[c], a, split(rows[2 * step][c]),
                  split(rows[2 * step + 1][c]));
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] += corrections[i / 4][i % 4];
  } else {
    const auto pair = [&](int row, int key) {
      const float2 two = *reinterpret_cast<const float2*>(&weights[row][first_key + key]);
      return pack_pair<T>(two.x, two.y);
    };
    const uint32_t a[4] = {pair(g, 2 * t), pair(g + 8, 2 * t), pair(g, 2 * t + 8), pair(g + 8, 2 * t + 8)};
#pragma unroll
    for (int c = 0; c < 8; ++c) {  // a register holds neighbouring columns; mma wants neighbouring keys
      const uint32_t select = c % 2 == 0 ? 0x5410 : 0x7632;
      mma_m16n8k16<T>(sums[c], a, __byte_perm(rows[0][c / 2], rows[1][c / 2], select),
                      __byte_perm(rows[2][c / 2], rows[3][c / 2], select));
    }
  }
}

template <class T, int kKeys>
__global__ void __launch_bounds__(32 * kMaxWarps, 1)
    one_launch(const Problem problem, const T* q, const T* k, const T* v, T* out) {
  using F = Fragments<T>;
  constexpr int kSixteens = kKeys / 16;
  extern __shared__ uint4 shared[];
  auto& softmax = *reinterpret_cast<ClusterSoftmax<kKeys>*>(shared);
  auto* parts = reinterpret_cast<Part<kKeys>*>(shared + sizeof(softmax) / sizeof(uint4));
  init_exchange(softmax);
  let_next_kernel_come();
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int head = cluster_index(), first_query = blockIdx.y * kQueries;
  const int64_t head_dim = problem.head_dim;
  const int first_dim = (cluster_rank() * warps + warp) * F::kDims;
  const int dims = problem.head_dim - first_dim;  // of this warp; none where not positive
  const int64_t q_offset = problem.q_offset(head) + first_query * head_dim + first_dim;
  const int64_t kv_offset = problem.kv_offset(head) + first_dim;
  const int column = F::vector(g) * F::kVector;  // of V
  q += q_offset + g * head_dim + t * F::kVector;
  k += kv_offset + g * head_dim + t * F::kVector;
  v += kv_offset + F::key(t, 0) * head_dim + column;
  out += q_offset + g * head_dim + t * F::kVector;
  int log_rows = log_rows_of_block();
  ready(q), ready(k), ready(v), ready(out), ready(log_rows);
  cluster_wait();  // here, where it costs nothing
  follow_previous_kernel();

  uint4 q_rows[2][2], k_rows[kSixteens][2][2], v_rows[kSixteens][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i / 2 * 8, dim = i % 2 * 4 * F::kVector;
    q_rows[i / 2][i % 2] = load16(q + row * head_dim + dim,
                                  first_query + g + row < problem.q_len && t * F::kVector + dim < dims);
  }
  const auto load_k = [&](int first_key) {
#pragma unroll
    for (int i = 0; i < kSixteens * 4; ++i) {
      const int key = first_key + i / 2 * 8, dim = i % 2 * 4 * F::kVector;
      k_rows[i / 4][i / 2 % 2][i % 2] =
          load16(k + key * head_dim + dim, g + key < problem.kv_len && t * F::kVector + dim < dims);
    }
  };
  const auto load_v = [&](int first_key) {
#pragma unroll
    for (int i = 0; i < kSixteens * 4; ++i) {
      const int key = first_key + i / 4 * 16 + F::key(0, i % 4);
      v_rows[i / 4][i % 4] = load16(v + key * head_dim, F::key(t, 0) + key < problem.kv_len && column < dims);
    }
  };

  float sums[F::kVector][4] = {};
  const int tiles = kKeys == 16 ? 1 : problem.key_tiles(first_query + kQueries - 1, kKeys);
  for (int key_tile = 0; key_tile < tiles; ++key_tile) {
    const int first_key = key_tile * kKeys;
    // All warps have read the parts of the previous tile. The arrival of the weights proves that too, but
    // racecheck does not see an order that goes through other blocks.
    if (key_tile > 0) __syncthreads();
    load_k(first_key);
    if (kKeys == 16) load_v(first_key);  // otherwise registers are free for it only after K's use
    expect_exchange(softmax);
#pragma unroll
    for (int i = 0; i < kSixteens; ++i) {
      float scores[2][4];
      multiply_scores<T>(q_rows, k_rows[i], scores);
      float* part = &parts[warp][g][16 * i + 2 * t];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float2*>(part + 8 * half) = make_float2(scores[half][0], scores[half][1]);
        *reinterpret_cast<float2*>(part + 8 * half + 8 * (kKeys + 8)) =
            make_float2(scores[half][2], scores[half][3]);
      }
    }
    if (kKeys > 16) load_v(first_key);
    __syncthreads();  // the parts of all warps are written
    exchange(softmax, parts, warps, log_rows, problem, first_query, first_key, key_tile % 2);
    if (kKeys > 16) wait_for_factors(softmax, key_tile % 2);  // otherwise only at the end
    if (key_tile > 0) {
      const float correction[2] = {softmax.factors[g].x, softmax.factors[g + 8].x};
#pragma unroll
      for (int i = 0; i < F::kVector * 4; ++i) sums[i / 4][i % 4] *= correction[i % 4 / 2];
    }
#pragma unroll
    for (int i = 0; i < kSixteens; ++i) multiply_values<T>(softmax.weights, 16 * i, v_rows[i], sums);
  }

  if (kKeys == 16) wait_for_factors(softmax, 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = g + 8 * half;
    const float sum = softmax.factors[row].y;  // of weights up to 1: the quick division is in its range
    const float factor = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
    const bool valid = first_query + row < problem.q_len;
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // columns 2t and 2t + 1 of each product: vectors t and t + 4
      static_assert(F::vector(1) == 4 && F::vector(6) == 3);
      const auto value = [&](int c) { return sums[c][2 * half + i] * factor; };
      uint4 result;
      if constexpr (sizeof(T) == 4) {
        result = make_uint4(__float_as_uint(value(0)), __float_as_uint(value(1)), __float_as_uint(value(2)),
                            __float_as_uint(value(3)));
      } else {
        result = make_uint4(pack_pair<T>(value(0), value(1)), pack_pair<T>(value(2), value(3)),
                            pack_pair<T>(value(4), value(5)), pack_pair<T>(value(6), value(7)));
      }
      if (valid && (t + 4 * i) * F::kVector < dims)  // __stcg: ptxas splits a plain store
        __stcg(reinterpret_cast<uint4*>(out + 8 * half * head_dim + 4 * i * F::kVector), result);
    }
  }
}

// Blocks per cluster and warps per block: as many blocks as a cluster may have, then as many warps as
// head_dim needs.
struct Shape {
  int ranks = 2, warps = 1;
};
Shape shape_of(const AttentionShape& s, Dtype dtype) {
  const int64_t warp_dims = 128 / bytes_of(dtype);
  Shape shape;
  while (shape.ranks < 16 && shape.ranks * warp_dims < s.head_dim) shape.ranks *= 2;
  while (shape.ranks * shape.warps * warp_dims < s.head_dim) shape.warps *= 2;
  return shape;
}
// 16: all keys, in one step.
int keys_of(const AttentionShape& s) {
  return s.kv_len > 16 ? 64 : 16;
}

template <int kKeys>
int64_t shared_bytes(int warps) {
  return static_cast<int64_t>(sizeof(ClusterSoftmax<kKeys>) + warps * sizeof(Part<kKeys>));
}

template <class F>
auto with_kernel(Dtype dtype, int keys, F&& f) {
  return with_element(dtype, [&](auto element) {
    using T = decltype(element);
    return f(element, keys == 64 ? one_launch<T, 64> : one_launch<T, 16>);
  });
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& /*device*/) {
  const AttentionShape& s = spec.shape;
  const Shape shape = shape_of(s, dtype);
  Plan plan{
      .tile = {.q = kQueries, .k = keys_of(s), .d = shape.warps * static_cast<int>(128 / bytes_of(dtype))}};
  plan.kernels = {
      {.name = "one_launch",
       .function = with_kernel(dtype, plan.tile.k,
                               [](auto, auto* kernel) { return reinterpret_cast<const void*>(kernel); }),
       .blocks = s.batch * s.q_heads * ceil_div(s.q_len, kQueries) * shape.ranks,
       .threads = 32 * shape.warps,
       .shared_bytes = plan.tile.k == 64 ? shared_bytes<64>(shape.warps) : shared_bytes<16>(shape.warps)}};
  plan.unit = dtype == Dtype::bf16 ? MathUnit::f16 : MathUnit::tf32;
  return plan;
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  with_kernel(dtype, plan.tile.k, [&](auto element, auto* kernel) {
    using T = decltype(element);
    launch_early(kernel, plan.kernels[0],
                 {shape_of(spec.shape, dtype).ranks, ceil_div(spec.shape.q_len, kQueries)}, args.stream,
                 Problem::of(spec), static_cast<const T*>(args.q), static_cast<const T*>(args.k),
                 static_cast<const T*>(args.v), static_cast<T*>(args.out));
  });
}

// All warps multiply, those past head_dim too.
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const int ranks = shape_of(spec.shape, dtype).ranks;
  return trace_clusters(spec, dtype, plan,
                        {.ranks = ranks,
                         .dims = int64_t{ranks} * plan.tile.d,
                         .products = dtype == Dtype::f32 ? 3 : 1,
                         .one_tile = plan.tile.k == 16});
}

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 5,
    .name = "fragments",
    .idea =
        "the cluster's warps read Q, K and V straight into mma.sync's registers; fp32 as three tf32 products",
    .finding =
        "3.3 us at 4096, 4.9 at 8192 in fp32; 2.5 and 3.0 in bf16 (rung 4 in fp32: 6.3 and 7 to 8): no "
        "operand passes shared memory and all reads fly at once; of the 3.3, 0.5 are the launch, 0.7 the "
        "exchange of scores.",
    .limits = {.dtypes = {Dtype::f32, Dtype::bf16},
               .head_dim_max = 8192,
               .causal = true,
               .compute_capability = 90},
    .tolerance = {.f32 = 1e-10},
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
