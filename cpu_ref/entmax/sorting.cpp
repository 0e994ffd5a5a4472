#include "cpu_ref/entmax/sorting.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "cpu_ref/entmax/row_solution.h"

namespace splash::cpu_ref {
namespace {

// Computes tau of the k largest keys for k = 1, 2, … as long as it does not exceed the k-th key. The last one
// is the row's tau. x: [m], falling from 0.
template <class T>
double sparsemax_offset(const std::vector<T>& x) {
  double tau = -1, sum = 0, k = 0;
  for (const double value : x) {
    sum += value;
    k += 1;
    const double candidate = (sum - 1) / k;
    if (candidate > value) break;
    tau = candidate;
  }
  return tau;
}

template <class T>
double entmax15_offset(const std::vector<T>& x) {
  double tau = -1, mean = 0, squares = 0, k = 0;  // squares: of deviations from the mean (Welford 1962)
  for (const double value : x) {
    k += 1;
    const double deviation = value - mean;
    mean += deviation / k;
    squares += deviation * (value - mean);
    const double candidate = mean - std::sqrt(std::max(0.0, (1 - squares) / k));
    if (candidate > value) break;
    tau = candidate;
  }
  return tau;
}

}  // namespace

template <class T>
RowSolution<T> solve_sorting(std::span<const T> z, T max, double alpha) {
  std::vector<T> x;
  for (const T value : z)
    if (value - max > -1) x.push_back(value - max);
  std::ranges::sort(x, std::greater<>());
  const T offset = static_cast<T>(alpha == 2 ? sparsemax_offset(x) : entmax15_offset(x));
  return row_solution(max, offset, 0, evaluate(z.data(), static_cast<int64_t>(z.size()), max, offset, alpha));
}

template RowSolution<float> solve_sorting(std::span<const float>, float, double);
template RowSolution<double> solve_sorting(std::span<const double>, double, double);

}  // namespace splash::cpu_ref
