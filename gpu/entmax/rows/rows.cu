// One block per row. Rows of up to 8192 keys stay in registers where alpha is 1.5 or 2; all others are read
// again, from L2, in each step.

#include "gpu/entmax/rows/rows.h"

#include <string>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/error.h"
#include "core/normalizer.h"
#include "gpu/entmax/rows/row_weights.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax {
namespace {

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

// Rows of any alpha but 1.5 and 2. They are read from memory in each step: computing powers takes longer than
// the reads, and holding scores here would cost the rows of alpha 1.5 and 2 registers.
template <class T>
__device__ __noinline__ void weigh_by_powers(const T* row, double alpha, Computed<T> largest, int64_t n,
                                             T* out) {
  using V = Computed<T>;
  const V a = static_cast<V>(alpha - 1);
  const auto keep = [out](int64_t j, V p) { store(out, j, p); };
  if (alpha > 2) {
    weigh_from_least<V>(
        a, largest, n, [row](int64_t j) { return load(row, j); }, keep);
    return;
  }
  V moved = 0;
  const auto visit = [&](const auto& use) {
    for (int64_t j = threadIdx.x; j < n; j += kRowThreads) use(j, a * (load(row, j) - largest) + moved);
  };
  if (alpha >= kLeastByShift) {
    weigh_by_shift<V, true>(
        PowerWeight<V>{1 / a}, visit, [&](V by) { moved = by; }, keep);
  } else {
    weigh_by_log<V>(a, visit, keep);
  }
}

// Blocks per SM, for __launch_bounds__. They are so many that the code for powers, which holds no scores,
// takes no more registers than the code that holds `held` scores per thread.
template <class T>
constexpr int blocks_of(int held) {
  return sizeof(T) == 8 ? held > 4 ? 1 : 3 : held == 0 ? 6 : held <= 4 ? 8 : 4;
}

// kHeld: a thread holds up to so many scores, all that it has, in registers; 0: none.
template <class T, int kHeld>
__global__ void __launch_bounds__(kRowThreads, blocks_of<T>(kHeld))
    entmax_rows_kernel(const T* scores, const double* alphas, int64_t alpha_step, int64_t n, T* p) {
  wait_for_kernels_before();
  using V = Computed<T>;
  const T* const row = scores + blockIdx.x * n;
  T* const out = p + blockIdx.x * n;
  const double alpha = alphas[blockIdx.x * alpha_step];
  const V gain = static_cast<V>(alpha - 1), infinity = static_cast<V>(INFINITY);

  V held[kHeld > 0 ? kHeld : 1];
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int j = static_cast<int>(threadIdx.x) + i * kRowThreads;
      held[i] = j < n ? load(row, j) : -infinity;
    }
  }
  V largest[1] = {-infinity};
  int poisoned = !entmax_takes(alpha);
  const auto look = [&](V score) {
    poisoned |= !(score < infinity);
    largest[0] = score > largest[0] ? score : largest[0];
  };
  if constexpr (kHeld > 0) {
#pragma unroll
    for (const V score : held) look(score);
  } else {
    for (int64_t j = threadIdx.x; j < n; j += kRowThreads) look(load(row, j));
  }
  combine_block(largest, Largest{});
  poisoned = __syncthreads_or(poisoned);
  if (poisoned || largest[0] == -infinity) {
    for (int64_t j = threadIdx.x; j < n; j += kRowThreads)
      store(out, j, poisoned ? static_cast<V>(NAN) : V(0));
    return;
  }
  if (alpha != 1.5 && alpha != 2) return weigh_by_powers(row, alpha, largest[0], n, out);

  // Scores relative to the largest, in units of z; -inf past the row's end.
  if constexpr (kHeld > 0) {
#pragma unroll
    for (V& score : held) score = gain * (score - largest[0]);
  }
  V moved = 0;
  const auto visit = [&](const auto& use) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) use(threadIdx.x + int64_t{i} * kRowThreads, held[i]);
    } else {
      for (int64_t j = threadIdx.x; j < n; j += kRowThreads)
        use(j, gain * (load(row, j) - largest[0]) + moved);
    }
  };
  const auto move = [&](V by) {
    moved = by;
#pragma unroll
    for (V& score : held) score += by;
  };
  const auto keep = [&](int64_t j, V weight) {
    if (j < n) store(out, j, weight);
  };
  constexpr bool kLong = kHeld == 0;
  if (alpha == 1.5) {
    weigh_by_shift<V, kLong>(SquareWeight{}, visit, move, keep);
  } else {
    weigh_by_shift<V, kLong>(LinearWeight{}, visit, move, keep);
  }
}

// u = p^(2 - alpha); p > 0.
__device__ double derivative_of(double p, double alpha) {
  return alpha == 1.5 ? sqrt(p) : alpha == 2 ? 1.0 : pow(p, 2 - alpha);
}
__device__ float derivative_of(float p, double alpha) {
  return alpha == 1.5 ? sqrtf(p) : alpha == 2 ? 1.0f : powf(p, static_cast<float>(2 - alpha));
}

// What a key adds to dL/dalpha, without the factor g - delta: p (1/a - ln p) / a with a = alpha - 1. For
// alpha near 1 this is large, and the sum over the keys nearly cancels. As sum u (g - delta) = 0, u / a^2 may
// be subtracted from each term; what is left does not cancel. It is written in x = a ln p, with p = u e^x.
__device__ __forceinline__ double alpha_term(double p, double u, double a, double log_p) {
  if (a >= 0.25) return p * (1 / a - log_p) / a;
  const double x = a * log_p;
  const double of_x =
      x > -0.01 ? -x * x * (0.5 + x * (1.0 / 3 + x * (0.125 + x / 30))) : exp(x) * (1 - x) - 1;
  return u / (a * a) * of_x;
}

// A row of alpha above 2, without NaN; returns dL/dalpha. u grows without bound as p falls, and delta comes
// so close to the g of the least p that rounding would lose their difference. So g and delta are taken
// relative to that g, and slope_of gives u relative to the u of the least p.
template <class T>
__device__ __noinline__ double steep_gradient(const T* row, const T* gradient, double alpha, int64_t n,
                                              T* out) {
  using V = Computed<T>;
  const auto visit = [&](const auto& use) {
    for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
      const double p = load(row, j);
      if (p > 0) use(j, p);
    }
  };
  double least[1] = {-2}, first[1] = {-static_cast<double>(n)};  // negated, for Largest
  visit([&](int64_t, double p) { least[0] = -p > least[0] ? -p : least[0]; });
  combine_block(least, Largest{});
  visit([&](int64_t j, double p) {
    if (p == -least[0] && -static_cast<double>(j) > first[0]) first[0] = -static_cast<double>(j);
  });
  combine_block(first, Largest{});
  if (-first[0] >= static_cast<double>(n)) {  // no key
    for (int64_t j = threadIdx.x; j < n; j += kRowThreads) store(out, j, V(0));
    return 0;
  }
  const double g_of_least = load(gradient, static_cast<int64_t>(-first[0]));
  const auto slope_of = [&](double p) { return pow(-p / least[0], 2 - alpha); };  // relative to the largest
  const auto product_of = [&](double p, double g) { return g != 0 ? pow(p, 2 - alpha) * g : 0.0; };

  double sums[3] = {0, 0, 0};
  visit([&](int64_t j, double p) {
    const double g = load(gradient, j) - g_of_least, u = slope_of(p);
    sums[0] += u;
    sums[1] += u * g;
    sums[2] += product_of(p, g);
  });
  combine_block(sums, Plus{});
  const double delta = sums[1] / sums[0], a = alpha - 1;  // delta: minus g_of_least
  double total[1] = {0};
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    const double p = load(row, j), g = load(gradient, j) - g_of_least;
    V ds = 0;
    if (p > 0) {
      ds = static_cast<V>(product_of(p, g) - slope_of(p) * (sums[2] / sums[0]));
      total[0] += (g - delta) * alpha_term(p, 0, a, log(p));
    }
    store(out, j, ds);
  }
  combine_block(total, Plus{});
  return total[0];
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, sizeof(T) == 8 ? 4 : 5)
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
  combine_block(sums, Plus{});
  poisoned = __syncthreads_or(poisoned);
  if (alpha > 2 && !poisoned) {
    const double of_alpha = steep_gradient(row, gradient, alpha, n, out);
    if (threadIdx.x == 0) d_alpha[blockIdx.x] = of_alpha;
    return;
  }
  const double delta = sums[1] / sums[0];

  double total[1] = {0};
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    const V value = load(row, j);
    V ds = poisoned ? static_cast<V>(NAN) : V(0);
    if (value > 0) {
      const double g = load(gradient, j) - delta;
      const V u = derivative_of(value, alpha);
      ds = static_cast<V>(u * g);
      total[0] += g * alpha_term(value, u, a, log(value));
    }
    store(out, j, ds);
  }
  combine_block(total, Plus{});
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
