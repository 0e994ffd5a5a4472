#include "cpu_ref/entmax/histogram.h"

#include <cstdint>
#include <vector>

#include "cpu_ref/entmax/newton.h"
#include "cpu_ref/entmax/row_solution.h"

namespace splash::cpu_ref {
namespace {

constexpr int kMostSteps = 500;

double edge(int64_t bin, int bins) {
  return static_cast<double>(bin) / bins - 1;
}

// Newton from the left on the floored scores. count: [bins + 1]; the last one counts the keys equal to the
// maximum.
double solve_bins(const std::vector<int64_t>& count, double alpha) {
  const int bins = static_cast<int>(count.size()) - 1;
  double offset = -1;
  for (int step = 0; step < kMostSteps; ++step) {
    double mass = 0, slope = 0;
    for (int64_t bin = bins; bin >= 0 && edge(bin, bins) > offset; --bin) {
      if (count[bin] == 0) continue;
      const double d = edge(bin, bins) - offset;
      const double p = static_cast<double>(count[bin]) * entmax_power(d, alpha);
      mass += p;
      slope += p / d / (alpha - 1);
    }
    const double next = offset + (mass - 1) / slope;
    if (!(next > offset)) break;
    offset = next;
  }
  return offset;
}

}  // namespace

template <class T>
T histogram_lower_bound(std::span<const T> z, T max, double alpha, int bins) {
  std::vector<int64_t> count(bins + 1);
  for (const T value : z) {
    const double x = value - max;
    if (!(x > -1)) continue;  // p is 0 whatever tau is
    ++count[static_cast<int64_t>((x + 1) * bins)];
  }
  return static_cast<T>(solve_bins(count, alpha));
}

template <class T>
RowSolution<T> solve_histogram(std::span<const T> z, T max, double alpha, const SolverOptions& options) {
  const T start = histogram_lower_bound(z, max, alpha, options.histogram_bins);
  const auto newton = newton_refine(z.data(), static_cast<int64_t>(z.size()), max, start, alpha,
                                    options.max_iterations, options.tolerance);
  return row_solution(max, newton.offset, newton.iterations, newton.sums);
}

template float histogram_lower_bound(std::span<const float>, float, double, int);
template double histogram_lower_bound(std::span<const double>, double, double, int);
template RowSolution<float> solve_histogram(std::span<const float>, float, double, const SolverOptions&);
template RowSolution<double> solve_histogram(std::span<const double>, double, double, const SolverOptions&);

}  // namespace splash::cpu_ref
