#pragma once
// Entmax of rows against the CPU's double result for the same rounded scores, wherever its kernels run.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "core/dtype.h"
#include "core/normalizer.h"
#include "core/random.h"
#include "cpu_ref/entmax/rows.h"
#include "gpu/tests/entmax_row_scan.h"

namespace splash::gpu::testing {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Rows {
  std::vector<double> values, d_alpha;  // [rows * n], [rows]
};

inline void check_alike(std::span<const double> mine, std::span<const double> expected, double bound) {
  REQUIRE(mine.size() == expected.size());
  int wrong = 0;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (std::isnan(expected[i]) ? !std::isnan(mine[i])
                                : !(std::abs(mine[i] - expected[i]) <= bound * (1 + std::abs(expected[i]))))
      ++wrong;
  }
  CHECK(wrong == 0);
}

// Kernels: constructed from (dtype, alphas, rows, n). forward(scores) and gradient(p, d_p) return what the
// kernels write over poison.
template <class Kernels>
void check_values_and_gradients(uint64_t seed) {
  const std::vector<double> alpha{1.5, 1.05, 1.2, 1.5, 2.0, 1.5, 2.0, 1.9, 2.5};
  const auto rows = static_cast<int64_t>(alpha.size());
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16}) {
    for (const int64_t n : {1, 2, 31, 256, 1000, 1025, 5000, 8192, 9999}) {
      CAPTURE(to_string(dtype));
      CAPTURE(n);
      const CounterRandom random(seed + static_cast<uint64_t>(n));
      std::vector<double> scores(rows * n), d_p(rows * n), p(rows * n), ds(rows * n), d_alpha(rows);
      for (int64_t i = 0; i < rows * n; ++i) {
        scores[i] = round_to(dtype, 3 * random.normal(i));
        d_p[i] = round_to(dtype, random.normal(rows * n + i));
      }
      for (int64_t j = 1; j < n; ++j) {
        scores[j] = -kInfinity;                    // only one visible key
        scores[3 * n + j] = scores[3 * n];         // ties
        scores[5 * n + j] = scores[5 * n] - 1000;  // one key far above the others
      }
      for (int64_t j = 0; j < n; ++j) scores[4 * n + j] = -kInfinity;
      scores[6 * n + n / 2] = kNan;
      scores[7 * n + n - 1] = kInfinity;
      cpu_ref::entmax_rows<double>(scores, alpha, rows, p);
      Kernels kernels(dtype, alpha, rows, n);
      const double bound = 16 * std::max(unit_roundoff(dtype), dtype == Dtype::f64 ? 0 : 1e-6);
      const std::vector<double> values = kernels.forward(scores).values;
      for (int64_t r = 0; r < rows; ++r) {
        CAPTURE(alpha[r]);
        // At alpha 1.05, p = d^20 has 20 times the rounding errors of z and of tau. At 2.5, dp/dz = 2/3
        // p^(-1/2) multiplies those of z by some 50.
        const double times = dtype != Dtype::f64 ? 1 : alpha[r] == 1.05 ? 4 : alpha[r] > 2 ? 64 : 1;
        const double of_row = times * bound;
        check_alike(std::span(values).subspan(r * n, n), std::span(p).subspan(r * n, n), of_row);
      }
      for (double& value : p) value = round_to(dtype, value);
      cpu_ref::entmax_rows_gradient<double>(p, d_p, alpha, rows, ds, d_alpha);
      const Rows gradient = kernels.gradient(p, d_p);
      check_alike(gradient.values, ds, 64 * bound);
      check_alike(gradient.d_alpha, d_alpha, dtype == Dtype::f64 ? 1e-9 : 1e-3);
    }
  }
}

// One row per alpha and pattern, all of the same length.
struct ScanRows {
  std::vector<double> alpha, scores;
  std::vector<Pattern> pattern;
  int64_t n = 0;

  ScanRows(std::span<const double> alphas, std::span<const Pattern> patterns, int64_t length, Dtype dtype)
      : n(length) {
    for (const Pattern p : patterns) {
      std::vector<double> row = scores_of(p, length, 7);
      for (double& s : row) s = round_to(dtype, s);
      for (const double a : alphas) {
        alpha.push_back(a);
        pattern.push_back(p);
        scores.insert(scores.end(), row.begin(), row.end());
      }
    }
  }
};

// Checks p of each row against what follows from one key's p, and the gradients of rows that are short
// enough.
template <class Kernels>
void check_scan(const ScanRows& rows, Dtype dtype) {
  CAPTURE(to_string(dtype));
  CAPTURE(rows.n);
  const bool is_double = dtype == Dtype::f64;
  const auto count = static_cast<int64_t>(rows.alpha.size());
  Kernels kernels(dtype, rows.alpha, count, rows.n);
  const std::vector<double> p = kernels.forward(rows.scores).values;
  const bool differentiates = rows.n <= 300;
  std::vector<double> d_p(differentiates ? p.size() : 0);
  const CounterRandom random(99);
  for (size_t i = 0; i < d_p.size(); ++i) d_p[i] = round_to(dtype, random.normal(i));
  const Rows gradient = differentiates ? kernels.gradient(p, d_p) : Rows{};
  for (int64_t r = 0; r < count; ++r) {
    const double alpha = rows.alpha[static_cast<size_t>(r)];
    const int pattern = static_cast<int>(rows.pattern[static_cast<size_t>(r)]);
    CAPTURE(alpha);
    CAPTURE(pattern);
    const auto of_row = [&](const std::vector<double>& values) {
      return std::span(values).subspan(r * rows.n, rows.n);
    };
    const RowErrors errors = errors_of_row(of_row(rows.scores), of_row(p), alpha);
    CHECK(errors.sum <= (is_double ? 1e-9 : 1e-5));
    CHECK(errors.p <= (is_double ? 1e-9 : 2e-6));
    CHECK(errors.support <= 1e-6);
    if (!differentiates) continue;
    const GradientErrors of = errors_of_gradient(of_row(p), of_row(d_p), alpha, of_row(gradient.values),
                                                 gradient.d_alpha[static_cast<size_t>(r)]);
    CHECK(of.scores <= (is_double ? 1e-9 : 3e-6));
    CHECK(of.alpha <= (is_double ? 1e-6 : 1e-5));
  }
}

template <class Kernels>
void check_refused_alphas() {
  Kernels kernels(Dtype::f32, {1.0, kNan, kInfinity, 0.5, 1 + 9e-7, 64.01, kMostAlpha, 1.5}, 8, 3);
  std::vector<double> scores;
  for (int row = 0; row < 8; ++row) scores.insert(scores.end(), {1, 2, 3});
  const Rows p = kernels.forward(scores);
  for (int i = 0; i < 18; ++i) CHECK(std::isnan(p.values[i]));
  CHECK(p.values[20] == 1);
  CHECK(p.values[23] == doctest::Approx(0.8307).epsilon(1e-3));
}

}  // namespace splash::gpu::testing
