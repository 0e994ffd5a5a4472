#pragma once
// Rows on which a rounded tau would show, and the checks of their probabilities. These need no solver: all p
// follow from one, p_j^(alpha-1) = p_i^(alpha-1) + (alpha-1) (s_j - s_i), and with sum p = 1 only one p fits.
// From the largest p (alpha up to 2) or the smallest (above), errors do not grow.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/normalizer.h"
#include "core/random.h"

namespace splash::gpu::testing {

inline constexpr double kScanAlphas[] = {kLeastAlpha, 1.00001, 1.001, 1.02, 1.05, 1.2, 1.5,
                                         1.9,         2,       2.5,   3,    4,    10,  kMostAlpha};

enum class Pattern {
  equal,
  near_equal,      // N(0, 10^-6)
  slightly_above,  // one key 0.1 above equal ones
  far_above,       // one key 0.9 above equal ones
  spread,          // N(0, 9)
  wide,            // N(0, 900)
  offset,          // N(1000, 1)
  ramp,            // from 0 down to -2
  edges,           // 2, 1.9, 1.5, repeated: some keys are nearly 1 / (alpha - 1) below others
  one_key,         // all others are masked
  half_masked,
};
inline constexpr Pattern kPatterns[] = {Pattern::equal,     Pattern::near_equal, Pattern::slightly_above,
                                        Pattern::far_above, Pattern::spread,     Pattern::wide,
                                        Pattern::offset,    Pattern::ramp,       Pattern::edges,
                                        Pattern::one_key,   Pattern::half_masked};

inline std::vector<double> scores_of(Pattern pattern, int64_t n, uint64_t seed) {
  const CounterRandom random(seed);
  std::vector<double> scores(static_cast<size_t>(n), 0.0);
  for (int64_t j = 0; j < n; ++j) {
    double& s = scores[static_cast<size_t>(j)];
    const double normal = random.normal(static_cast<uint64_t>(j));
    const bool chosen = j == n / 3;
    switch (pattern) {
      case Pattern::equal:
        s = 0.3;
        break;
      case Pattern::near_equal:
        s = 1e-6 * normal;
        break;
      case Pattern::slightly_above:
        s = chosen ? 0.1 : 0;
        break;
      case Pattern::far_above:
        s = chosen ? 0.9 : 0;
        break;
      case Pattern::spread:
        s = 3 * normal;
        break;
      case Pattern::wide:
        s = 30 * normal;
        break;
      case Pattern::offset:
        s = 1000 + normal;
        break;
      case Pattern::ramp:
        s = -2.0 * static_cast<double>(j) / static_cast<double>(n);
        break;
      case Pattern::edges:
        s = j % 3 == 0 ? 2 : j % 3 == 1 ? 1.9 : 1.5;
        break;
      case Pattern::one_key:
        s = chosen ? normal : -std::numeric_limits<double>::infinity();
        break;
      case Pattern::half_masked:
        s = j % 2 == 0 && !chosen ? -std::numeric_limits<double>::infinity() : normal;
        break;
    }
  }
  return scores;
}

// The errors of a row's p.
struct RowErrors {
  double sum = 0;  // |sum p - 1|
  double p = 0;    // the largest |p - expected|
  double support =
      0;  // the largest |z - tau| of a key that has p > 0 where it should have 0, or 0 where it should not
};

// (p^a + y)^(1/a). For small a it computes with (p^a + y) - 1, which is small; for large a, p^a itself is
// small.
inline double follows(double p, double a, double y) {
  if (y == 0) return p;
  if (a > 1) return std::pow(std::max(std::pow(p, a) + y, 0.0), 1 / a);
  const double lacks = std::expm1(a * std::log(p)) + y;
  return lacks > -1 ? std::exp(std::log1p(lacks) / a) : 0;
}

inline RowErrors errors_of_row(std::span<const double> scores, std::span<const double> p, double alpha) {
  const double a = alpha - 1;
  size_t from = 0;
  double sum = 0;
  for (size_t j = 0; j < p.size(); ++j) {
    sum += p[j];
    if (!(p[j] > 0)) continue;
    const bool better = alpha > 2 ? p[j] < p[from] : p[j] > p[from];
    if (better || !(p[from] > 0)) from = j;
  }
  RowErrors errors{.sum = std::abs(sum - 1)};
  if (!(p[from] > 0)) return {1, 1, 1};
  for (size_t j = 0; j < p.size(); ++j) {
    if (scores[j] == -std::numeric_limits<double>::infinity()) {
      errors.p = std::max(errors.p, p[j]);
      continue;
    }
    const double y = a * (scores[j] - scores[from]);
    const double excess = std::pow(p[from], a) + y, expected = follows(p[from], a, y);
    const bool has = p[j] > 0;
    const bool unheld = alpha < 2 && expected < 1e-37;  // below float32's range
    if (has != (excess > 0) && !unheld) errors.support = std::max(errors.support, std::abs(excess));
    // For alpha above 2, p rises steeply from 0, so only keys of the support are compared; the support is
    // checked above.
    if (alpha <= 2 || has) errors.p = std::max(errors.p, std::abs(p[j] - expected));
    if (std::isnan(p[j])) errors.sum = errors.p = std::numeric_limits<double>::infinity();
  }
  return errors;
}

// Errors of a row's gradients, relative to the largest, and of dL/dalpha, relative to the terms that it sums.
// p is as the kernel took it. Computed in long double, whose exponents hold any u, and from differences of g,
// because nothing else survives at the smallest p of alpha above 2. Takes O(n^2).
struct GradientErrors {
  double scores = 0, alpha = 0;
};

inline GradientErrors errors_of_gradient(std::span<const double> p, std::span<const double> d_p, double alpha,
                                         std::span<const double> d_scores, double d_alpha) {
  using Long = long double;
  const Long a = static_cast<Long>(alpha) - 1;
  std::vector<size_t> keys;
  std::vector<Long> u;
  Long sum_u = 0, largest = 1e-9L, error = 0, of_alpha = 0, of_terms = 1e-9L;
  for (size_t j = 0; j < p.size(); ++j) {
    if (!(p[j] > 0)) continue;
    keys.push_back(j);
    u.push_back(std::pow(static_cast<Long>(p[j]), 1 - a));
    sum_u += u.back();
  }
  std::vector<Long> expected(p.size(), 0);
  for (size_t i = 0; i < keys.size(); ++i) {
    Long difference = 0;
    for (size_t k = 0; k < keys.size(); ++k)
      difference += u[k] / sum_u * (static_cast<Long>(d_p[keys[i]]) - static_cast<Long>(d_p[keys[k]]));
    expected[keys[i]] = u[i] * difference;
    const Long of_p = p[keys[i]], term = difference * of_p * (1 / a - std::log(of_p)) / a;
    of_alpha += term;
    of_terms = std::max(of_terms, std::abs(difference * u[i]) * std::log(of_p) * std::log(of_p));
    largest = std::max(largest, std::abs(expected[keys[i]]));
  }
  for (size_t j = 0; j < p.size(); ++j) {
    if (std::abs(expected[j]) > 1e38L) continue;  // beyond float32's range
    error = std::max(error, std::abs(expected[j] - static_cast<Long>(d_scores[j])));
  }
  return {static_cast<double>(error / largest),
          static_cast<double>(std::abs(of_alpha - static_cast<Long>(d_alpha)) / of_terms)};
}

}  // namespace splash::gpu::testing
