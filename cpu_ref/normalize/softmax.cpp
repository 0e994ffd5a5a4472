#include "cpu_ref/normalize/softmax.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "cpu_ref/normalize/row_scan.h"

namespace splash::cpu_ref {

template <class T>
void softmax_row(std::span<const T> scores, std::span<T> p) {
  if (scores.size() != p.size())
    throw InvalidArgument(fmt::format(
        "softmax_row got {} scores and room for {} probabilities; they must match", scores.size(), p.size()));
  const RowScan<T> scan = scan_row(scores);
  if (scan.poisoned) {
    std::ranges::fill(p, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  if (scan.empty()) {
    std::ranges::fill(p, T(0));
    return;
  }
  double sum = 0;
  for (size_t j = 0; j < p.size(); ++j) {
    p[j] = std::exp(scores[j] - scan.max);
    sum += p[j];
  }
  const T scale = static_cast<T>(1 / sum);
  for (T& value : p) value *= scale;
}

template void softmax_row(std::span<const float>, std::span<float>);
template void softmax_row(std::span<const double>, std::span<double>);

}  // namespace splash::cpu_ref
