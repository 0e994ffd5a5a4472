#include "cpu_ref/entmax/gradient.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/entmax/gradient_parts.h"

namespace splash::cpu_ref {
namespace {

// Index of the largest u among p > 0; p.size() if there is none.
template <class T>
size_t heaviest(double alpha, std::span<const T> p) {
  size_t at = p.size();
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0 && (at == p.size() || (alpha > 2 ? p[i] < p[at] : p[i] > p[at]))) at = i;
  }
  return at;
}

// The weight of g in MATH's dL/dalpha. Here g is relative to delta, which is allowed because dp/dalpha sums
// to 0. Then sum u (g - delta) = 0, so the terms in u vanish, and with them most of the cancellation. The
// rest cancels near alpha = 1, where u is nearly p. There the terms in u stay, in a form that already
// contains the difference.
double alpha_weight(double p, double alpha) {
  const double a = alpha - 1, log_p = std::log(p);
  if (a >= 0.25) return p * (1 / a - log_p) / a;
  return -p * log_p * log_p * second_exponential(-a * std::min(log_p, 0.0));
}

}  // namespace

template <class T>
double entmax_gradient(double alpha, std::span<const T> p, std::span<const T> d_p, std::span<T> ds) {
  const size_t heavy = heaviest(alpha, p);
  if (heavy == p.size()) {
    std::ranges::fill(ds, T(0));
    return 0;
  }
  const double p_heavy = p[heavy], g_heavy = d_p[heavy];
  // u_j / u_heavy. Up to alpha = 2 the weights are at most 1 without the division.
  const auto weight = [&](double q) { return entmax_derivative<double>(alpha > 2 ? q / p_heavy : q, alpha); };
  double sum_u = 0, sum_ug = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (!(p[i] > 0)) continue;
    const double u = weight(p[i]);
    sum_u += u;
    sum_ug += u * (d_p[i] - g_heavy);
  }
  const double delta = sum_ug / sum_u;
  double d_alpha = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (!(p[i] > 0)) {
      ds[i] = 0;
      continue;
    }
    const double g = d_p[i] - g_heavy - delta;
    ds[i] = g == 0 ? T(0) : saturated<T>(entmax_derivative<double>(p[i], alpha) * g);
    d_alpha += g * alpha_weight(p[i], alpha);
  }
  return d_alpha;
}

template double entmax_gradient(double, std::span<const float>, std::span<const float>, std::span<float>);
template double entmax_gradient(double, std::span<const double>, std::span<const double>, std::span<double>);

}  // namespace splash::cpu_ref
