#pragma once
// One attention problem without its data: what a backend is asked to compute.

#include <cmath>

#include "core/dropout.h"
#include "core/mask.h"
#include "core/normalizer.h"
#include "core/selection.h"
#include "core/shape.h"

namespace splash {

struct AttentionSpec {
  AttentionShape shape{};
  double scale = 0;  // scores are scale * <q, k>; 0 means 1/sqrt(head_dim)
  Normalizer normalizer{};
  Selection selection{};
  Mask mask{};
  double softcap = 0;  // above 0: scores are softcap * tanh(scale * <q, k> / softcap) (Gemma 2, arXiv 2408.00118)
  Dropout dropout{};

  double score_scale() const {
    return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  }

  // The score of scale * <q, k>, and its derivative there as a function of the score. A score of NaN stays NaN.
  template <class T>
  T capped(T scaled) const {
    return softcap > 0 ? static_cast<T>(softcap) * std::tanh(scaled / static_cast<T>(softcap)) : scaled;
  }
  template <class T>
  T cap_slope(T score) const {
    const T share = softcap > 0 ? score / static_cast<T>(softcap) : T(0);
    return 1 - share * share;
  }

  void validate() const;  // throws InvalidArgument
};

}  // namespace splash
