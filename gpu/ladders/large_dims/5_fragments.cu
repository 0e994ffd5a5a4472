// Rung 5: rung 4's cluster, with its operands never in shared memory. A warp takes 64 dims and reads Q, K and
// V straight from memory as the fragments that mma.sync wants: which dim or key counts as which is free, so a
// lane's elements can lie side by side and every read is 16 bytes. All reads are under way before the first
// use. fp32 stays fp32: each operand is split into two tf32, three products recover 22 bits of the 24.
//
// Arithmetic, head_dim 8192, 4 heads x 16 x 16, fp32: rung 4 spends ~3000 cycles of shared-memory reads on
// the scores of a block (each product's operands come by 16-byte reads, four wavefronts each) and ~1500 on
// the values. Here a warp issues 48 + 48 products of 16 x 8 x 8 and ~500 instructions around them: ~600
// cycles. Left are one trip to memory (~1000), two exchanges (~800 each), the stores: 3500 cycles = 2 us, and
// the launch.

#include "gpu/arch/mma.cuh"
#include "gpu/ladders/large_dims/cluster_softmax.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;
using namespace arch;

constexpr int kMaxWarps = 16;

// The scores over a warp's dims; in shared memory there are as many as the block has warps, behind a
// ClusterSoftmax.
template <int kKeys>
using Part = float[kQueries][kKeys + 8];

// Lane l of a warp is lane t = l % 4 of the group of four g = l / 4, as in mma.cuh. A vector holds 16 bytes
// of a row.
template <class T>
struct Fragments {
  static constexpr int kVector = 16 / sizeof(T), kDims = 8 * kVector;
  // The key of 16 that row i of V, of the four that a lane reads, is.
  static __device__ int key(int t, int i) { return sizeof(T) == 4 ? t + 4 * i : 2 * t + i % 2 + i / 2 * 8; }
  // The vector of a row of V that is column n of the products. A lane gets columns 2t and 2t + 1 of the
  // results: so that four lanes store neighbours, those are vectors t and t + 4.
  static __device__ int vector(int n) { return n / 2 + n % 2 * 4; }
};

__device__ inline uint4 load16(const void* address, bool valid) {
  return valid ? *reinterpret_cast<const uint4*>(address) : make_uint4(0, 0, 0, 0);
}

__device__ inline void store16(void* address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  __stcg(static_cast<uint4*>(address), make_uint4(x, y, z, w));  // ptxas splits a plain store
}

struct Split {
  uint32_t high, low;
};
__device__ inline Split split(uint32_t bits) {
  const uint32_t high = bits & 0xffffe000;
  return {high, __float_as_uint(__uint_as_float(bits) - __uint_as_float(high))};
}

// main + correction += a b over 8 dims, a and b split. Infinite operands make the corrections NaN: whoever
// adds the two up takes `main` alone where it is infinite.
__device__ inline void mma_split(float (&main)[4], float (&correction)[4], const Split (&a)[4], Split b0,
                                 Split b1) {
  const uint32_t high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
  const uint32_t low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
  mma_m16n8k8_tf32(main, high, b0.high, b1.high);
  mma_m16n8k8_tf32(correction, high, b0.low, b1.low);
  mma_m16n8k8_tf32(correction, low, b0.high, b1.high);
}

// The scores of 16 queries and 16 keys over a warp's dims, in mma's layout; the indices of q, k and scores
// count rows g and g + 8, and keys g and g + 8.
template <class T>
__device__ void multiply_scores(const uint4 (&q)[2][2], const uint4 (&k)[2][2], float (&scores)[2][4]) {
  float correction[2][4] = {};
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
          mma_split(scores[half], correction[half], rows, split(b[half][j]), split(b[half][j + 1]));
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
      scores[0][i] += isinf(scores[0][i]) ? 0.0f : correction[0][i];
      scores[1][i] += isinf(scores[1][i]) ? 0.0f : correction[1][i];
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
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const auto part = [&](int row, int key) {
        return split(__float_as_uint(weights[row][first_key + 8 * step + key]));
      };
      const Split a[4] = {part(g, t), part(g + 8, t), part(g, t + 4), part(g + 8, t + 4)};
#pragma unroll
      for (int c = 0; c < 4; ++c)
        mma_split(sums[c], sums[c], a, split(rows[2 * step][c]), split(rows[2 * step + 1][c]));
    }
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
  follow_previous_kernel();
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int head = cluster_index(), first_query = blockIdx.y * kQueries;
  const int64_t head_dim = problem.head_dim;
  const int first_dim = (cluster_rank() * static_cast<int>(blockDim.x / 32) + warp) * F::kDims;
  const int dims = problem.head_dim - first_dim;  // of this warp; none where not positive
  q += problem.q_offset(head) + first_query * head_dim + first_dim;
  out += problem.q_offset(head) + first_query * head_dim + first_dim;
  k += problem.kv_offset(head) + first_dim;
  v += problem.kv_offset(head) + first_dim;

  uint4 q_rows[2][2], k_rows[kSixteens][2][2], v_rows[kSixteens][4];
  const auto load_k = [&](int first_key) {
#pragma unroll
    for (int i = 0; i < kSixteens * 4; ++i) {
      const int key = first_key + i / 4 * 16 + i / 2 % 2 * 8 + g, dim = (i % 2 * 4 + t) * F::kVector;
      k_rows[i / 4][i / 2 % 2][i % 2] = load16(k + key * head_dim + dim, key < problem.kv_len && dim < dims);
    }
  };
  const auto load_v = [&](int first_key) {
    const int column = F::vector(g) * F::kVector;
#pragma unroll
    for (int i = 0; i < kSixteens * 4; ++i) {
      const int key = first_key + i / 4 * 16 + F::key(t, i % 4);
      v_rows[i / 4][i % 4] = load16(v + key * head_dim + column, key < problem.kv_len && column < dims);
    }
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i / 2 * 8 + g, dim = (i % 2 * 4 + t) * F::kVector;
    q_rows[i / 2][i % 2] = load16(q + row * head_dim + dim, first_query + row < problem.q_len && dim < dims);
  }

  float sums[F::kVector][4] = {};
  const int tiles = kKeys == 16 ? 1 : problem.key_tiles(first_query + kQueries - 1, kKeys);
  for (int key_tile = 0; key_tile < tiles; ++key_tile) {
    const int first_key = key_tile * kKeys;
    load_k(first_key);
    if (kKeys == 16) load_v(first_key);  // else there are registers for it only after K's use
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
    if (key_tile == 0) cluster_wait();
    exchange(softmax, parts, blockDim.x / 32, problem, first_query, first_key, key_tile % 2);
    if (key_tile > 0) {
      const float correction[2] = {softmax.factors[g].x, softmax.factors[g + 8].x};
#pragma unroll
      for (int i = 0; i < F::kVector * 4; ++i) sums[i / 4][i % 4] *= correction[i % 4 / 2];
    }
#pragma unroll
    for (int i = 0; i < kSixteens; ++i) multiply_values<T>(softmax.weights, 16 * i, v_rows[i], sums);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = g + 8 * half;
    if (first_query + row >= problem.q_len) continue;
    const float factor = normalization(softmax.factors[row].y);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // columns 2t and 2t + 1 of each product
      const int column = F::vector(2 * t + i) * F::kVector;
      const auto value = [&](int c) { return sums[c][2 * half + i] * factor; };
      if (column >= dims) continue;
      if constexpr (sizeof(T) == 4) {
        store16(out + row * head_dim + column, __float_as_uint(value(0)), __float_as_uint(value(1)),
                __float_as_uint(value(2)), __float_as_uint(value(3)));
      } else {
        store16(out + row * head_dim + column, pack_pair<T>(value(0), value(1)),
                pack_pair<T>(value(2), value(3)), pack_pair<T>(value(4), value(5)),
                pack_pair<T>(value(6), value(7)));
      }
    }
  }
}

// Blocks a cluster and warps a block: as many blocks as a cluster may have, then as many warps as head_dim
// needs.
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
  static_assert(sizeof(ClusterSoftmax<kKeys>) % sizeof(uint4) == 0);
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
  plan.work = tiled_work(spec, dtype, plan.tile, round_up(s.head_dim, 128 / bytes_of(dtype)),
                         dtype == Dtype::bf16 ? MathUnit::f16 : MathUnit::tf32);
  if (dtype == Dtype::f32) plan.work.executed_flops *= 3;
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

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 5,
    .name = "fragments",
    .idea =
        "the cluster's warps read Q, K and V straight into mma.sync's registers; fp32 as three tf32 products",
    .finding =
        "5.2 us at 8192 in fp32 and 3.4 in bf16 (rung 4: 7.8 and 7.2): no operand passes shared memory and "
        "all reads fly at once; start-up and the exchange of scores are half of what is left.",
    .limits = {.dtypes = {Dtype::f32, Dtype::bf16},
               .head_dim_max = 8192,
               .causal = true,
               .compute_capability = 90},
    .tolerance = {.f32 = 1e-10},
    .plan = plan,
    .launch = launch};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
