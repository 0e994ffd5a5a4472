#include "core/attention_spec.h"

#include <fmt/format.h>

#include "core/error.h"

namespace splash {

void AttentionSpec::validate() const {
  shape.validate();
  if (!std::isfinite(scale)) throw InvalidArgument("scale is not finite; it must be a finite number");
  if (!(softcap >= 0 && std::isfinite(softcap)))
    throw InvalidArgument(
        fmt::format("softcap is {}; it must be a finite number above 0, or 0 for none", softcap));
  if (!(dropout.rate >= 0 && dropout.rate < 1))
    throw InvalidArgument(fmt::format("dropout is {}; it must be at least 0 and below 1", dropout.rate));
  normalizer.validate(shape);
  selection.validate(shape);
  mask.validate(shape);
}

}  // namespace splash
