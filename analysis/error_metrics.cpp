#include "analysis/error_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::analysis {

ErrorMetrics compare_arrays(std::span<const double> out, std::span<const double> ref) {
  if (out.size() != ref.size()) {
    throw InvalidArgument(
        fmt::format("{} values are compared with {}, equally many are needed", out.size(), ref.size()));
  }
  double squared_error = 0, squared_norm = 0, max_error = 0;
  bool nan_mismatch = false;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool both_nan = std::isnan(out[i]) && std::isnan(ref[i]);
    if (both_nan || (std::isinf(ref[i]) && out[i] == ref[i]))
      continue;  // equal infinities or NaN: no error, and no finite part of the norm
    const double error = out[i] - ref[i];
    nan_mismatch |= std::isnan(error);
    squared_error += error * error;
    squared_norm += ref[i] * ref[i];
    max_error = std::max(max_error, std::abs(error));
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (nan_mismatch) return {kNan, kNan, kNan};
  if (squared_error == 0) return {0, 0, max_error};
  return {squared_error / static_cast<double>(out.size()), squared_error / squared_norm, max_error};
}

double recall(std::span<const int32_t> found, std::span<const int32_t> reference) {
  if (reference.empty()) return 1;
  std::vector<int32_t> sorted(found.begin(), found.end());
  std::sort(sorted.begin(), sorted.end());
  const auto hits = std::count_if(reference.begin(), reference.end(), [&](int32_t key) {
    return std::binary_search(sorted.begin(), sorted.end(), key);
  });
  return static_cast<double>(hits) / static_cast<double>(reference.size());
}

}  // namespace splash::analysis
