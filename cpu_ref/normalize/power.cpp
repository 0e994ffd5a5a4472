#include "cpu_ref/normalize/power.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "cpu_ref/normalize/row_scan.h"

namespace splash::cpu_ref {

template <class T>
void power_row(std::span<const T> scores, double alpha, bool normalized, std::span<T> p) {
  if (!(alpha > 0) || !std::isfinite(alpha))
    throw InvalidArgument(fmt::format("power got alpha = {}; it must be finite and > 0", alpha));
  if (scores.size() != p.size())
    throw InvalidArgument(fmt::format(
        "power_row got {} scores and room for {} probabilities; they must match", scores.size(), p.size()));
  const RowScan<T> scan = scan_row(scores);
  if (scan.poisoned) {
    std::ranges::fill(p, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  if (!(scan.max > 0)) {
    std::ranges::fill(p, T(0));
    return;
  }
  // Weights are relative to the largest score, so that large scores do not overflow. The factor cancels in p
  // = w / sum w.
  const T unit = normalized ? scan.max : T(1);
  const T exponent = static_cast<T>(alpha);
  double sum = 0;
  for (size_t j = 0; j < p.size(); ++j) {
    p[j] = scores[j] > 0 ? std::pow(scores[j] / unit, exponent) : T(0);
    sum += p[j];
  }
  if (!normalized) return;
  const T scale = static_cast<T>(1 / sum);
  for (T& value : p) value *= scale;
}

template void power_row(std::span<const float>, double, bool, std::span<float>);
template void power_row(std::span<const double>, double, bool, std::span<double>);

}  // namespace splash::cpu_ref
