#include "cpu_ref/attention/given_threshold.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "cpu_ref/entmax/gradient_parts.h"

namespace splash::cpu_ref {

double shift_of_offset(double offset, double alpha, int64_t kv_len) {
  return std::clamp(-offset, std::pow(static_cast<double>(kv_len), 1 - alpha), 1.0);
}

void require_offsets(const AttentionSpec& spec, size_t offsets) {
  if (offsets == 0) return;
  if (static_cast<int64_t>(offsets) != spec.shape.rows()) {
    throw InvalidArgument(fmt::format("there are {} offsets of thresholds; allowed: none, or one a row, {}",
                                      offsets, spec.shape.rows()));
  }
  if (spec.normalizer.kind != NormalizerKind::entmax) {
    throw Unsupported(
        fmt::format("given thresholds are for entmax, not {}", to_string(spec.normalizer.kind)));
  }
  if (!spec.sinks.empty()) throw Unsupported("given thresholds take no sinks");
  if (spec.selection.kind != SelectionKind::all && spec.selection.kind != SelectionKind::top_k_row) {
    throw Unsupported(fmt::format("given thresholds take the selections all and top_k_row, not {}",
                                  to_string(spec.selection.kind)));
  }
}

template <class T>
double probabilities_at(double alpha, double shift, Row<T>& row) {
  row.p.resize(row.keys.size());
  if (row.keys.empty()) return std::numeric_limits<double>::infinity();
  row.poisoned |= std::isnan(shift);
  if (row.poisoned) {
    std::ranges::fill(row.p, std::numeric_limits<T>::quiet_NaN());
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double largest = *std::ranges::max_element(row.scores), beta = 1 / (alpha - 1);
  const auto weight = [&](T score) {  // relative to that of the largest key
    return std::pow(std::max((alpha - 1) * (score - largest) / shift + 1, 0.0), beta);
  };
  double total = 0;
  for (const T score : row.scores) total += weight(score);
  for (int64_t i = 0; i < row.size(); ++i) row.p[i] = static_cast<T>(weight(row.scores[i]) / total);
  return (alpha - 1) * largest - shift;
}

// With r = (z - tau_hat) / shift = (p / largest p)^(alpha-1): d ln w = ds / (z - tau_hat) - beta^2 (1/r + ln
// r) dalpha. Terms that are the same for all keys drop out, because sum p (g - mean) = 0. So 1 is subtracted
// from 1/r + ln r, the term that would cancel near alpha = 1.
template <class T>
double gradient_at(double alpha, double shift, std::span<const T> p, std::span<const T> d_p,
                   std::span<T> ds) {
  double mean = 0, largest = 0, dalpha = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (!(p[i] > 0)) continue;
    mean += double{p[i]} * d_p[i];
    largest = std::max<double>(largest, p[i]);
  }
  for (size_t i = 0; i < p.size(); ++i) {
    if (!(p[i] > 0)) {
      ds[i] = 0;
      continue;
    }
    const double down = std::log(largest / p[i]), of_log = p[i] * (d_p[i] - mean);  // of_log: dL / d ln w
    ds[i] = of_log == 0 ? T(0) : saturated<T>(of_log / (shift * std::exp((1 - alpha) * down)));
    if (of_log != 0) dalpha -= of_log * down * down * second_exponential((alpha - 1) * down);
  }
  return dalpha;
}

template double probabilities_at(double, double, Row<float>&);
template double probabilities_at(double, double, Row<double>&);
template double gradient_at(double, double, std::span<const float>, std::span<const float>, std::span<float>);
template double gradient_at(double, double, std::span<const double>, std::span<const double>,
                            std::span<double>);

}  // namespace splash::cpu_ref
