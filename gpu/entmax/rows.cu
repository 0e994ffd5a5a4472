// A block a row. The row is read again for each step: rows of a few thousand keys stay in L1, longer ones in
// L2.

#include "gpu/entmax/rows.h"

#include <string>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/error.h"
#include "gpu/cuda_check.h"

namespace splash::gpu::entmax {
namespace {

constexpr int kRowThreads = 256;
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

// Of all threads, in one fixed order; every thread gets it. kRowThreads values of shared memory.
template <class V, class Combine>
__device__ V of_block(V value, V* shared, const Combine& combine) {
  shared[threadIdx.x] = value;
  __syncthreads();
#pragma unroll
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half)
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  const V result = shared[0];
  __syncthreads();
  return result;
}

// d^power for d > 0.
__device__ float power_of(float d, float power) {
  return power == 1 ? d : power == 2 ? d * d : powf(d, power);
}
__device__ double power_of(double d, double power) {
  return power == 1 ? d : power == 2 ? d * d : pow(d, power);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    entmax_rows_kernel(const T* scores, const double* alphas, int64_t alpha_step, int64_t n, T* p) {
  using V = Computed<T>;
  __shared__ V shared[kRowThreads];
  const T* const row = scores + blockIdx.x * n;
  T* const out = p + blockIdx.x * n;
  const double alpha = alphas[blockIdx.x * alpha_step];
  const V gain = static_cast<V>(alpha - 1), beta = static_cast<V>(1 / (alpha - 1));
  const V infinity = static_cast<V>(INFINITY);

  V largest = -infinity;
  int poisoned = !(alpha > 1 && alpha < INFINITY);
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    const V z = gain * load(row, j);
    poisoned |= !(z < infinity);
    largest = z > largest ? z : largest;
  }
  largest = of_block(largest, shared, Largest{});
  poisoned = __syncthreads_or(poisoned);
  if (poisoned || largest == -infinity) {
    for (int64_t j = threadIdx.x; j < n; j += kRowThreads)
      store(out, j, poisoned ? static_cast<V>(NAN) : V(0));
    return;
  }

  // tau - largest lies in [low, high]; Newton from the left where it stays inside, else the middle. For alpha
  // up to 2 it rises to the root and never passes it.
  V low = -1, high = 0, offset = -1;
  for (int step = 0; step < kMaxSteps; ++step) {
    V mass = 0, slope = 0;
    for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
      const V d = gain * load(row, j) - largest - offset;
      if (!(d > 0)) continue;
      const V w = power_of(d, beta);
      mass += w;
      slope += w / d;
    }
    mass = of_block(mass, shared, Sum{});
    slope = beta * of_block(slope, shared, Sum{});
    (mass >= 1 ? low : high) = offset;
    V next = offset + (mass - 1) / slope;
    if (!(next > low && next < high)) next = low + (high - low) / 2;
    if (next == offset || next == low || next == high) break;
    offset = next;
  }
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    const V d = gain * load(row, j) - largest - offset;
    store(out, j, d > 0 ? power_of(d, beta) : V(0));
  }
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
  using V = Computed<T>;
  __shared__ double shared[kRowThreads];
  const T* const row = p + blockIdx.x * n;
  const T* const gradient = d_p + blockIdx.x * n;
  T* const out = d_scores + blockIdx.x * n;
  const double alpha = alphas[blockIdx.x * alpha_step], a = alpha - 1;

  double sum_u = 0, sum_ug = 0;
  int poisoned = 0;
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    const V value = load(row, j);
    poisoned |= value != value;
    if (!(value > 0)) continue;
    const V u = derivative_of(value, alpha);
    sum_u += u;
    sum_ug += static_cast<double>(u) * load(gradient, j);
  }
  sum_u = of_block(sum_u, shared, Sum{});
  sum_ug = of_block(sum_ug, shared, Sum{});
  poisoned = __syncthreads_or(poisoned);
  const double delta = sum_ug / sum_u;

  double total = 0;
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    const V value = load(row, j);
    V ds = poisoned ? static_cast<V>(NAN) : V(0);
    if (value > 0) {
      const double g = load(gradient, j) - delta;
      ds = static_cast<V>(derivative_of(value, alpha) * g);
      total += g * value * (1 / a - static_cast<double>(log(value))) / a;
    }
    store(out, j, ds);
  }
  total = of_block(total, shared, Sum{});
  if (threadIdx.x == 0) d_alpha[blockIdx.x] = poisoned ? static_cast<double>(NAN) : total;
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
    entmax_rows_kernel<T><<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(
        static_cast<const T*>(scores), alpha, alphas == 1 ? 0 : 1, n, static_cast<T*>(p));
  });
  check_launch("entmax_rows_kernel");
}

void entmax_rows_gradient(Dtype dtype, const void* p, const void* d_p, const double* alpha, int64_t alphas,
                          int64_t rows, int64_t n, void* d_scores, double* d_alpha, StreamHandle stream) {
  check(alphas, rows, n);
  if (rows == 0) return;
  visit(dtype, [&](auto element) {
    using T = decltype(element);
    entmax_gradient_kernel<T><<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(
        static_cast<const T*>(p), static_cast<const T*>(d_p), alpha, alphas == 1 ? 0 : 1, n,
        static_cast<T*>(d_scores), d_alpha);
  });
  check_launch("entmax_gradient_kernel");
}

}  // namespace splash::gpu::entmax
