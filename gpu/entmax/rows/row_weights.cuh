#pragma once
// The weights of one row of entmax, computed by a block: p_j = w_j / sum w. A rounded tau is not accurate
// enough: p = (z - tau)^beta magnifies its error where alpha is near 1 or above 2, and where many keys lie
// just above tau. So tau is expressed relative to a key, in one of three ways, such that p is off by about
// its own rounding. Dividing by sum w then corrects no more than that.
//
//   1.125 <= alpha <= 2:  w = (x + shift)^beta with x = z - largest z, shift = (largest p)^(alpha - 1).
//
//   alpha < 1.125:        the same w over shift^beta, (1 + x / shift)^beta, by logarithms:
//                         shift = exp(-(alpha - 1) l) with l = -ln(largest p).
//
//   alpha > 2:            w = (z - least + y^(alpha - 1))^beta: least is the least z with p > 0, y its p.
//                         Weights rise infinitely steeply from 0: a key may lie so little above tau that
//                         rounding tau would merge the two.
//
// Where alpha <= 2 the beta-norm of x + shift is convex in the shift: Newton's steps on it, from the right,
// never pass its root.

#include <cstdint>
#include <type_traits>

namespace splash::gpu::entmax {

constexpr int kRowThreads = 256, kRowWarps = kRowThreads / 32;
constexpr int kMostSteps = 200;
constexpr double kLeastByShift = 1.125;  // least alpha for a plain shift; below, logarithms

struct Plus {
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

// Combines each of the values over all threads, in one fixed order. Every thread gets the results.
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

// A thread's sum, plain for the few scores that it holds. For long rows it is compensated (Kahan 1965), so
// that rounding errors do not grow with the length.
template <class V, bool kLong>
struct RowSum {
  V sum = 0, lost = 0;

  __device__ void add(V x) {
    if constexpr (kLong) {
      const V y = x - lost, next = sum + y;
      lost = (next - sum) - y;
      sum = next;
    } else {
      sum += x;
    }
  }
};

// Whether a search may end: sum w is 1 up to rounding, or stops getting nearer to 1.
template <class V>
class Settling {
 public:
  // error: sum w - 1, or its logarithm.
  __device__ bool operator()(V error) {
    constexpr V kRounding = std::is_same_v<V, double> ? V(1e-14) : V(1e-6);
    const V distance = error < 0 ? -error : error;
    const bool stands = distance < V(0.01) && !(distance < last_ / 2);
    last_ = distance;
    return !(distance > kRounding) || stands || ++steps_ == kMostSteps;
  }

 private:
  V last_ = V(INFINITY);
  int steps_ = 0;
};

// operator(): u^beta; slope: its derivative without the factor beta. root: sum^(-1 / beta) - 1.
struct SquareWeight {  // alpha 1.5
  template <class V>
  __device__ V operator()(V u, V& slope) const {
    slope = u > 0 ? u : V(0);
    return slope * slope;
  }
  template <class V>
  __device__ V root(V sum) const {
    return 1 / sqrt(sum) - 1;
  }
};
struct LinearWeight {  // alpha 2
  template <class V>
  __device__ V operator()(V u, V& slope) const {
    slope = u > 0 ? V(1) : V(0);
    return u > 0 ? u : V(0);
  }
  template <class V>
  __device__ V root(V sum) const {
    return (1 - sum) / sum;
  }
};
template <class V>
struct PowerWeight {
  V beta;
  __device__ V operator()(V u, V& slope) const {
    const V weight = u > 0 ? pow(u, beta) : V(0);
    slope = u > 0 ? weight / u : V(0);
    return weight;
  }
  __device__ V root(V sum) const { return expm1(-log(sum) / beta); }
};

// Returns x, but hides from the compiler that it is x: so the compiler recomputes what depends on it instead
// of keeping it in registers.
template <class V>
__device__ V again(V x) {
  return __shfl_sync(0xFFFFFFFFu, x, 0);
}

// visit(use) calls use(j, x) for each of the thread's scores, move(by) adds `by` to all of them, store(j, p)
// takes the probabilities.
template <class V, bool kLong, class Weigh, class Visit, class Move, class Store>
__device__ void weigh_by_shift(const Weigh& weigh, const Visit& visit, const Move& move, const Store& store) {
  V shift = 1, inverse = 1;  // inverse: 1 / sum w
  bool moved = false;        // the scores include the shift; what remains of it is small and rounds little
  for (Settling<V> settled;;) {
    RowSum<V, kLong> sum, slope;
    visit([&](int64_t, V x) {
      V of_x;
      sum.add(weigh(x + shift, of_x));
      slope.add(of_x);
    });
    V sums[2] = {sum.sum, slope.sum};
    combine_block(sums, Plus{});
    inverse = 1 / sums[0];
    if (settled(sums[0] - 1)) break;
    // The step is a fraction of the mean u, weighted by slopes, which is at most the shift.
    const V mean = sums[0] / sums[1], by = mean * weigh.root(sums[0]);
    if (!moved && -shift < 1024 * by && 1024 * by < shift) {
      move(again(shift));
      shift = 0;
      moved = true;
    }
    shift += by;
    if (!moved && !(shift > 0)) shift = mean + by;  // rounding made it so: it was at least mean
  }
  shift = again(shift);
  visit([&](int64_t j, V x) {
    V slope;
    store(j, inverse * weigh(x + shift, slope));
  });
}

template <class V, class Visit, class Store>
__device__ void weigh_by_log(V a, const Visit& visit, const Store& store) {
  const V beta = 1 / a;
  V log_inverse = 0, factor = 1, inverse = 1;  // l; 1 / shift; 1 / sum w
  const auto weigh = [&](V x, V& rest) {       // rest: 1 + x / shift
    rest = 1 + factor * x;
    return rest > 0 ? exp(beta * log1p(factor * x)) : V(0);
  };
  for (Settling<V> settled;;) {
    RowSum<V, true> sum, slope;
    visit([&](int64_t, V x) {
      V rest;
      const V weight = weigh(x, rest);
      sum.add(weight);
      if (weight > 0) slope.add(weight / rest);
    });
    V sums[2] = {sum.sum, slope.sum};
    combine_block(sums, Plus{});
    inverse = 1 / sums[0];
    const V left = log(sums[0]) - log_inverse;
    if (settled(left)) break;
    log_inverse -= beta * log1p(sums[0] / sums[1] * expm1(-a * left));
    factor = exp(a * log_inverse);
  }
  visit([&](int64_t j, V x) {
    V rest;
    store(j, inverse * weigh(x, rest));
  });
}

// For alpha above 2. Reads the row again in each step: few rows have such an alpha, and holding their scores
// would cost the other rows registers. load(j): score j.
template <class V, class Load, class Store>
__device__ void weigh_from_least(V a, V largest, int64_t n, const Load& load, const Store& store) {
  const V beta = 1 / a;
  const auto visit = [&](const auto& use) {
    for (int64_t j = threadIdx.x; j < n; j += kRowThreads) use(j, load(j));
  };
  // With tau at `at`, a score or between two: the sum of the weights, how many scores equal `at`, and the
  // next scores above and below.
  struct Cut {
    V sum, ties, above, below;
  };
  const auto cut = [&](V at) -> Cut {
    RowSum<V, true> sum;
    V ties = 0, next[2] = {V(-INFINITY), V(-INFINITY)};
    visit([&](int64_t, V s) {
      if (s > at) sum.add(pow(a * (s - at), beta));
      if (s == at) ++ties;
      if (s > at && -s > next[0]) next[0] = -s;
      if (s < at && s > next[1]) next[1] = s;
    });
    V sums[2] = {sum.sum, ties};
    combine_block(sums, Plus{});
    combine_block(next, Largest{});
    return {sums[0], sums[1], -next[0], next[1]};
  };

  // low <= tau < high. least: the least score known to have p > 0. Even steps try a guess, which splits the
  // scores between low and high; odd steps try the score next to the last guess.
  V low = largest - beta, high = largest, least = largest, of_low = 2, of_high = 0, at = high;
  for (int step = 0; low < high && step < kMostSteps; ++step) {
    if (step % 2 == 0) {
      const V middle = low + (high - low) / 2,
              on_line = low + (high - low) * ((of_low - 1) / (of_low - of_high));
      at = step % 4 != 0 && on_line > low && on_line < high ? on_line : middle;
      if (!(at > low && at < high)) break;
    }
    const Cut of = cut(at);
    if (of.sum >= 1) {
      low = at;
      of_low = of.sum;
      at = of.above;
      if (!(of.above < least)) break;
    } else {
      high = at;
      of_high = of.sum;
      least = of.ties > 0 ? at : of.above < least ? of.above : least;
      at = of.below;
      if (!(of.below > low)) break;
    }
  }

  // y, the least p. What it adds to the other keys' weights is convex in y.
  const Cut of = cut(least);
  V y = (1 - of.sum) / of.ties, inverse = 1, rise = 0;
  for (Settling<V> settled;;) {
    rise = pow(y, a);
    RowSum<V, true> sum, slope;
    visit([&](int64_t, V s) {
      if (!(s > least)) return;
      const V u = a * (s - least) + rise, weight = pow(u, beta);
      sum.add(weight);
      slope.add(rise / u * (weight / y));
    });
    V sums[2] = {sum.sum, slope.sum};
    combine_block(sums, Plus{});
    const V total = sums[0] + of.ties * y;
    inverse = 1 / total;
    const V next = y - (total - 1) / (sums[1] + of.ties);
    if (settled(total - 1) || !(next > 0)) break;
    y = next;
  }
  visit([&](int64_t j, V s) {
    store(j, s > least ? inverse * pow(a * (s - least) + rise, beta) : s == least ? inverse * y : V(0));
  });
}

}  // namespace splash::gpu::entmax
