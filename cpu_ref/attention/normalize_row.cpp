#include "cpu_ref/attention/normalize_row.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "cpu_ref/normalize/power.h"
#include "cpu_ref/normalize/softmax.h"

namespace splash::cpu_ref {
namespace {

template <class T>
double entmax_of(double alpha, Solver solver, Row<T>& row, const SolverOptions& options, int* iterations) {
  row.p_sink = 0;
  const bool has_sink = row.sink > -std::numeric_limits<T>::infinity();
  if (row.keys.empty() && !has_sink) return std::numeric_limits<double>::infinity();
  if (has_sink) {  // for a moment a key like others
    row.scores.push_back(row.sink);
    row.p.push_back(0);
  }
  const double tau = entmax_row<T>(solver, row.scores, alpha, row.p, options, iterations);
  row.poisoned = std::isnan(tau);
  if (has_sink) {
    row.p_sink = row.p.back();
    row.scores.pop_back();
    row.p.pop_back();
  }
  return tau;
}

}  // namespace

void require_solver(const Normalizer& normalizer, Solver solver) {
  if (normalizer.kind != NormalizerKind::entmax) return;
  for (const double alpha : normalizer.alpha) {
    if (supports_alpha(solver, alpha)) continue;
    throw Unsupported(fmt::format("solver {} does not take alpha {}; bisection and halley_bisection take any",
                                  to_string(solver), alpha));
  }
}

template <class T>
double normalize_row(const Normalizer& normalizer, int64_t q_head, Solver solver, Row<T>& row,
                     const SolverOptions& options, int* iterations) {
  row.p.resize(row.keys.size());
  switch (normalizer.kind) {
    case NormalizerKind::entmax:
      return entmax_of(normalizer.alpha_of(q_head), solver, row, options, iterations);
    case NormalizerKind::softmax:
      softmax_row<T>(row.scores, row.p);
      break;
    case NormalizerKind::power:
    case NormalizerKind::power_unnormalized:
      power_row<T>(row.scores, normalizer.alpha_of(q_head), normalizer.kind == NormalizerKind::power, row.p);
      break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

template double normalize_row(const Normalizer&, int64_t, Solver, Row<float>&, const SolverOptions&, int*);
template double normalize_row(const Normalizer&, int64_t, Solver, Row<double>&, const SolverOptions&, int*);

}  // namespace splash::cpu_ref
