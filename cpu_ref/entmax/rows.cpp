#include "cpu_ref/entmax/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "core/normalizer.h"
#include "core/parallel.h"
#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void check(size_t size, std::span<const double> alpha, int64_t rows) {
  if (rows < 0 || (rows == 0 ? size != 0 : size % rows != 0))
    throw InvalidArgument(fmt::format("{} scores do not make {} rows", size, rows));
  if (alpha.size() != 1 && static_cast<int64_t>(alpha.size()) != rows) {
    throw InvalidArgument(
        fmt::format("alpha has {} entries; allowed: 1, or {} (one a row)", alpha.size(), rows));
  }
  for (const double a : alpha) require_entmax_alpha(a);
}

void check_same(const char* name, size_t size, size_t needed) {
  if (size == needed) return;
  throw InvalidArgument(fmt::format("{} has {} entries; it must have {}", name, size, needed));
}

double alpha_of(std::span<const double> alpha, int64_t row) {
  return alpha.size() == 1 ? alpha.front() : alpha[row];
}

}  // namespace

template <class T>
void entmax_rows(std::span<const T> scores, std::span<const double> alpha, int64_t rows, std::span<T> p) {
  check(scores.size(), alpha, rows);
  check_same("p", p.size(), scores.size());
  const int64_t n = rows > 0 ? static_cast<int64_t>(scores.size()) / rows : 0;
  parallel_for(rows, 4, [&](int64_t r) {
    const double a = alpha_of(alpha, r);
    const std::span<T> row = p.subspan(r * n, n);  // z, then p
    std::ranges::transform(scores.subspan(r * n, n), row.begin(),
                           [&](T s) { return static_cast<T>(a - 1) * s; });
    const Solver solver = a <= 2 ? Solver::newton : Solver::halley_bisection;
    entmax_probabilities<T>(row, a, solve_tau<T>(solver, row, a), row);
  });
}

template <class T>
void entmax_rows_gradient(std::span<const T> p, std::span<const T> d_p, std::span<const double> alpha,
                          int64_t rows, std::span<T> d_scores, std::span<double> d_alpha) {
  check(p.size(), alpha, rows);
  check_same("d_p", d_p.size(), p.size());
  check_same("d_scores", d_scores.size(), p.size());
  check_same("d_alpha", d_alpha.size(), rows);
  const int64_t n = rows > 0 ? static_cast<int64_t>(p.size()) / rows : 0;
  parallel_for(rows, 4, [&](int64_t r) {
    const std::span<T> ds = d_scores.subspan(r * n, n);
    if (n > 0 && std::isnan(p[r * n])) {
      std::ranges::fill(ds, static_cast<T>(kNan));
      d_alpha[r] = kNan;
    } else {
      d_alpha[r] = entmax_gradient<T>(alpha_of(alpha, r), p.subspan(r * n, n), d_p.subspan(r * n, n), ds);
    }
  });
}

// MATH's dL/dalpha with g taken relative to delta, which dp/dalpha allows because it sums to 0: as sum u (g -
// delta) = 0, the terms in u vanish and with them most of the cancellation.
template <class T>
double entmax_gradient(double alpha, std::span<const T> p, std::span<const T> d_p, std::span<T> ds) {
  double sum_u = 0, sum_ug = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (!(p[i] > 0)) continue;
    const double u = entmax_derivative<double>(p[i], alpha);
    sum_u += u;
    sum_ug += u * d_p[i];
  }
  const double delta = sum_ug / sum_u;
  const double a = alpha - 1;
  double d_alpha = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    ds[i] = 0;
    if (!(p[i] > 0)) continue;
    const double g = d_p[i] - delta;
    ds[i] = static_cast<T>(entmax_derivative<double>(p[i], alpha) * g);
    d_alpha += g * p[i] * (1 / a - std::log(static_cast<double>(p[i]))) / a;
  }
  return d_alpha;
}

template void entmax_rows(std::span<const float>, std::span<const double>, int64_t, std::span<float>);
template void entmax_rows(std::span<const double>, std::span<const double>, int64_t, std::span<double>);
template void entmax_rows_gradient(std::span<const float>, std::span<const float>, std::span<const double>,
                                   int64_t, std::span<float>, std::span<double>);
template void entmax_rows_gradient(std::span<const double>, std::span<const double>, std::span<const double>,
                                   int64_t, std::span<double>, std::span<double>);
template double entmax_gradient(double, std::span<const float>, std::span<const float>, std::span<float>);
template double entmax_gradient(double, std::span<const double>, std::span<const double>, std::span<double>);

}  // namespace splash::cpu_ref
