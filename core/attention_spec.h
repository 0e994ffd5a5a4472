#pragma once
// One attention problem without its data: what a backend is asked to compute.

#include <cmath>
#include <limits>
#include <vector>

#include "core/distance_bias.h"
#include "core/dropout.h"
#include "core/error.h"  // what validate() throws
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
  double softcap =
      0;  // above 0: scores are softcap * tanh(scale * <q, k> / softcap) (Gemma 2, arXiv 2408.00118)
  // Empty, or [q_heads]: one more score of each row, neither scaled nor capped, that takes probability and
  // has no value; k_keep does not count it (GPT-OSS, arXiv 2508.10925). -inf: none. A row without keys has it
  // alone.
  std::vector<double> sinks{};
  Dropout dropout{};
  DistanceBias
      bias{};  // added to scaled and capped scores. Packed sequences must have as many queries as keys

  double score_scale() const {
    return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  }

  // The score of scale * <q, k>, and its derivative there as a function of the score. A score of NaN stays
  // NaN.
  template <class T>
  T capped(T scaled) const {
    return softcap > 0 ? static_cast<T>(softcap) * std::tanh(scaled / static_cast<T>(softcap)) : scaled;
  }
  template <class T>
  T cap_slope(T score) const {
    const T share = softcap > 0 ? score / static_cast<T>(softcap) : T(0);
    return 1 - share * share;
  }

  double sink_of(int64_t q_head) const {  // -inf where there is none
    return sinks.empty() ? -std::numeric_limits<double>::infinity() : sinks[static_cast<size_t>(q_head)];
  }

  void validate() const;  // throws InvalidArgument
};

}  // namespace splash
