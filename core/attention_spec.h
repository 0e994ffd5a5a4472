#pragma once
// One attention problem without its data: what a backend is asked to compute.

#include <cmath>

#include "core/error.h"
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

  double score_scale() const {
    return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  }

  void validate() const {  // throws InvalidArgument
    shape.validate();
    if (!std::isfinite(scale)) throw InvalidArgument("scale is not finite; it must be a finite number");
    normalizer.validate(shape);
    selection.validate(shape);
    mask.validate(shape);
  }
};

}  // namespace splash
