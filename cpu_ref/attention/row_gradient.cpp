#include "cpu_ref/attention/row_gradient.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu_ref/entmax/gradient.h"

namespace splash::cpu_ref {
namespace {

// Calls use(place, p, g) for the keys of the support.
template <class T, class Use>
void for_each_in_support(const Row<T>& row, const Use& use) {
  for (int64_t i = 0; i < row.size(); ++i) {
    if (row.p[i] > 0) use(i, static_cast<double>(row.p[i]), static_cast<double>(row.g[i]));
  }
}

template <class T>
double mean_gradient(const Row<T>& row) {  // returns sum p g
  double sum = 0;
  for_each_in_support(row, [&](int64_t, double p, double g) { sum += p * g; });
  return sum;
}

template <class T>
double softmax_gradient(Row<T>& row) {
  const double mean = mean_gradient(row);
  for_each_in_support(row,
                      [&](int64_t i, double p, double g) { row.ds[i] = static_cast<T>(p * (g - mean)); });
  return 0;
}

// p = s^alpha / W or s^alpha: d ln p = alpha ds / s + ln s dalpha, minus its mean if p is normalised.
template <class T>
double power_gradient(double alpha, bool normalized, Row<T>& row) {
  const double mean = normalized ? mean_gradient(row) : 0;
  double dalpha = 0;
  for_each_in_support(row, [&](int64_t i, double p, double g) {
    const double s = row.scores[i];
    row.ds[i] = static_cast<T>(alpha * p / s * (g - mean));
    dalpha += p * std::log(s) * (g - mean);
  });
  return dalpha;
}

template <class T>
double entmax_gradient_of(double alpha, Row<T>& row) {
  if (!(row.p_sink > 0)) return entmax_gradient<T>(alpha, row.p, row.g, row.ds);
  row.p.push_back(row.p_sink);  // a key like others, but for its value
  row.g.push_back(0);
  row.ds.push_back(0);
  const double dalpha = entmax_gradient<T>(alpha, row.p, row.g, row.ds);
  row.ds_sink = row.ds.back();
  row.p.pop_back();
  row.g.pop_back();
  row.ds.pop_back();
  return dalpha;
}

}  // namespace

template <class T>
double row_gradient(const Normalizer& normalizer, int64_t q_head, Row<T>& row) {
  row.ds.assign(row.keys.size(), row.poisoned ? std::numeric_limits<T>::quiet_NaN() : T(0));
  row.ds_sink = row.poisoned ? std::numeric_limits<T>::quiet_NaN() : T(0);
  if (row.poisoned) {
    return normalizer.kind == NormalizerKind::softmax ? 0 : std::numeric_limits<double>::quiet_NaN();
  }
  switch (normalizer.kind) {
    case NormalizerKind::softmax:
      return softmax_gradient(row);
    case NormalizerKind::entmax:
      return entmax_gradient_of(normalizer.alpha_of(q_head), row);
    case NormalizerKind::power:
      return power_gradient(normalizer.alpha_of(q_head), true, row);
    case NormalizerKind::power_unnormalized:
      return power_gradient(normalizer.alpha_of(q_head), false, row);
  }
  return 0;
}

template double row_gradient(const Normalizer&, int64_t, Row<float>&);
template double row_gradient(const Normalizer&, int64_t, Row<double>&);

}  // namespace splash::cpu_ref
