#include "cpu_ref/entmax/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "core/normalizer.h"
#include "core/parallel.h"
#include "cpu_ref/entmax/gradient.h"
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
    const Solver solver = a <= 2 ? Solver::newton : Solver::bisection;
    entmax_row<T>(solver, scores.subspan(r * n, n), a, p.subspan(r * n, n));
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

template void entmax_rows(std::span<const float>, std::span<const double>, int64_t, std::span<float>);
template void entmax_rows(std::span<const double>, std::span<const double>, int64_t, std::span<double>);
template void entmax_rows_gradient(std::span<const float>, std::span<const float>, std::span<const double>,
                                   int64_t, std::span<float>, std::span<double>);
template void entmax_rows_gradient(std::span<const double>, std::span<const double>, std::span<const double>,
                                   int64_t, std::span<double>, std::span<double>);

}  // namespace splash::cpu_ref
