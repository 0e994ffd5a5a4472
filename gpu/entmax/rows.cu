// A block a row. Rows of up to 8192 keys stay in registers; longer ones are read again for each step, from
// L2.

#include "gpu/entmax/rows.h"

#include <string>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/error.h"
#include "gpu/entmax/launch.cuh"

namespace splash::gpu::entmax {
namespace {

constexpr int kRowThreads = 256, kRowWarps = kRowThreads / 32;
constexpr int kMaxSteps = 200;  // of a bracket that at least halves: more than a double has bits

template <class T>
using Computed = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
__device__ Computed<T> load(const T* from, int64_t at) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __bfloat162float(from[at]);
  if constexpr (std::is_same_v<T, __half>) return __half2float(from[at]);
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) return from[at];
}

template <class T>
__device__ void store(T* to, int64_t at, Computed<T> value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    to[at] = __float2bfloat16(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    to[at] = __float2half(value);
  } else {
    to[at] = value;
  }
}

struct Sum {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct Largest {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

// Each value of all threads, in one fixed order; every thread gets them.
template <class V, int kCount, class Combine>
__device__ void combine_block(V (&values)[kCount], const Combine& combine) {
  __shared__ V of_warps[kRowWarps][kCount];
#pragma unroll
  for (V& value : values) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
      value = combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, lanes));
  }
  __syncthreads();  // all have read what was there
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) of_warps[threadIdx.x / 32][i] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = of_warps[0][i];
#pragma unroll
    for (int warp = 1; warp < kRowWarps; ++warp) values[i] = combine(values[i], of_warps[warp][i]);
  }
}

// Calls use(weigh), where weigh(d, slope) gives d^beta and sets slope to d^(beta - 1), both 0 for d <= 0.
template <class V, class Use>
__device__ void with_power(V beta, const Use& use) {
  if (beta == 2) {
    use([](V d, V& slope) {
      slope = d > 0 ? d : V(0);
      return slope * slope;
    });
  } else if (beta == 1) {
    use([](V d, V& slope) {
      slope = d > 0 ? V(1) : V(0);
      return d > 0 ? d : V(0);
    });
  } else {
    use([beta](V d, V& slope) {
      const V weight = d > 0 ? pow(d, beta) : V(0);
      slope = d > 0 ? weight / d : V(0);
      return weight;
    });
  }
}

// kHeld: of a thread's scores in registers, all of them; 0: none.
template <class T, int kHeld>
__global__ void __launch_bounds__(kRowThreads)
    entmax_rows_kernel(const T* scores, const double* alphas, int64_t alpha_step, int64_t n, T* p) {
  wait_for_kernels_before();
  using V = Computed<T>;
  const T* const row = scores + blockIdx.x * n;
  T* const out = p + blockIdx.x * n;
  const double alpha = alphas[blockIdx.x * alpha_step];
  const V gain = static_cast<V>(alpha - 1), beta = static_cast<V>(1 / (alpha - 1));
  const V infinity = static_cast<V>(INFINITY);

  V held[kHeld > 0 ? kHeld : 1];
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int j = static_cast<int>(threadIdx.x) + i * kRowThreads;
      held[i] = j < n ? gain * load(row, j) : -infinity;
    }
  }
  // Calls use(j, z) with the thread's scores, in units of z; those behind the row's end are -inf.
  const auto visit = [&](const auto& use) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) use(threadIdx.x + int64_t{i} * kRowThreads, held[i]);
    } else {
      for (int64_t j = threadIdx.x; j < n; j += kRowThreads) use(j, gain * load(row, j));
    }
  };

  V largest[1] = {-infinity};
  int poisoned = !(alpha > 1 && alpha < INFINITY);
  visit([&](int64_t, V z) {
    poisoned |= !(z < infinity);
    largest[0] = z > largest[0] ? z : largest[0];
  });
  combine_block(largest, Largest{});
  poisoned = __syncthreads_or(poisoned);
  if (poisoned || largest[0] == -infinity) {
    for (int64_t j = threadIdx.x; j < n; j += kRowThreads)
      store(out, j, poisoned ? static_cast<V>(NAN) : V(0));
    return;
  }

  // tau - largest lies in [low, high]; Newton from the left where it stays inside, else the middle. For alpha
  // up to 2 the sum is convex: Newton rises to the root and never passes it.
  with_power(beta, [&](const auto& weigh) {
    V low = -1, high = 0, offset = -1;
    for (int step = 0; step < kMaxSteps; ++step) {
      V sums[2] = {0, 0};  // of weights, and of their slopes
      visit([&](int64_t, V z) {
        V slope;
        sums[0] += weigh(z - largest[0] - offset, slope);
        sums[1] += slope;
      });
      combine_block(sums, Sum{});
      (sums[0] >= 1 ? low : high) = offset;
      V next = offset + (sums[0] - 1) / (beta * sums[1]);
      if (next == offset) break;
      if (!(next > low && next < high)) {
        if (beta >= 1) break;  // but for rounding it stays inside
        next = low + (high - low) / 2;
        if (next == low || next == high) break;
      }
      offset = next;
    }
    visit([&](int64_t j, V z) {
      V slope;
      if (j < n) store(out, j, weigh(z - largest[0] - offset, slope));
    });
  });
}

// u = p^(2 - alpha); p > 0.
__device__ double derivative_of(double p, double alpha) {
  return alpha == 1.5 ? sqrt(p) : alpha == 2 ? 1.0 : pow(p, 2 - alpha);
}
__device__ float derivative_of(float p, double alpha) {
  return alpha == 1.5 ? sqrtf(p) : alpha == 2 ? 1.0f : powf(p, static_cast<float>(2 - alpha));
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    entmax_gradient_kernel(const T* p, const T* d_p, const double* alphas, int64_t alpha_step, int64_t n,
                           T* d_scores, double* d_alpha) {
  wait_for_kernels_before();
  using V = Computed<T>;
  const T* const row = p + blockIdx.x * n;
  const T* const gradient = d_p + blockIdx.x * n;
  T* const out = d_scores + blockIdx.x * n;
  const double alpha = alphas[blockIdx.x * alpha_step], a = alpha - 1;

  double sums[2] = {0, 0};  // of u, and of u g
  int poisoned = 0;
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    const V value = load(row, j);
    poisoned |= value != value;
    if (!(value > 0)) continue;
    const V u = derivative_of(value, alpha);
    sums[0] += u;
    sums[1] += static_cast<double>(u) * load(gradient, j);
  }
  combine_block(sums, Sum{});
  poisoned = __syncthreads_or(poisoned);
  const double delta = sums[1] / sums[0];

  double total[1] = {0};
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    const V value = load(row, j);
    V ds = poisoned ? static_cast<V>(NAN) : V(0);
    if (value > 0) {
      const double g = load(gradient, j) - delta;
      ds = static_cast<V>(derivative_of(value, alpha) * g);
      total[0] += g * value * (1 / a - static_cast<double>(log(value))) / a;
    }
    store(out, j, ds);
  }
  combine_block(total, Sum{});
  if (threadIdx.x == 0) d_alpha[blockIdx.x] = poisoned ? static_cast<double>(NAN) : total[0];
}

void check(int64_t alphas, int64_t rows, int64_t n) {
  if (rows < 0 || n < 0 || rows >= int64_t{1} << 31) {
    throw InvalidArgument("entmax has " + std::to_string(rows) + " rows of " + std::to_string(n) +
                          "; allowed are 0 to 2^31 - 1 rows of 0 or more");
  }
  if (alphas != 1 && alphas != rows) {
    throw InvalidArgument("alpha has " + std::to_string(alphas) + " entries; allowed: 1, or " +
                          std::to_string(rows) + " (one a row)");
  }
}

// Calls use(T{}) with the element type.
template <class Use>
void visit(Dtype dtype, const Use& use) {
  switch (dtype) {
    case Dtype::f64:
      return use(double{});
    case Dtype::f32:
      return use(float{});
    case Dtype::f16:
      return use(__half{});
    case Dtype::bf16:
      return use(__nv_bfloat16{});
  }
}

}  // namespace

void entmax_rows(Dtype dtype, const void* scores, const double* alpha, int64_t alphas, int64_t rows,
                 int64_t n, void* p, StreamHandle stream) {
  check(alphas, rows, n);
  if (rows == 0 || n == 0) return;
  visit(dtype, [&](auto element) {
    using T = decltype(element);
    const auto kernel = n <= 4 * kRowThreads    ? entmax_rows_kernel<T, 4>
                        : n <= 32 * kRowThreads ? entmax_rows_kernel<T, 32>
                                                : entmax_rows_kernel<T, 0>;
    launch("entmax_rows_kernel", kernel, static_cast<unsigned>(rows), kRowThreads, stream,
           static_cast<const T*>(scores), alpha, alphas == 1 ? 0 : 1, n, static_cast<T*>(p));
  });
}

void entmax_rows_gradient(Dtype dtype, const void* p, const void* d_p, const double* alpha, int64_t alphas,
                          int64_t rows, int64_t n, void* d_scores, double* d_alpha, StreamHandle stream) {
  check(alphas, rows, n);
  if (rows == 0) return;
  visit(dtype, [&](auto element) {
    using T = decltype(element);
    launch("entmax_gradient_kernel", entmax_gradient_kernel<T>, static_cast<unsigned>(rows), kRowThreads,
           stream, static_cast<const T*>(p), static_cast<const T*>(d_p), alpha, alphas == 1 ? 0 : 1, n,
           static_cast<T*>(d_scores), d_alpha);
  });
}

}  // namespace splash::gpu::entmax
