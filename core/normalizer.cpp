#include "core/normalizer.h"

#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "core/names.h"

namespace splash {
namespace {
constexpr Names<NormalizerKind, 4> kNormalizers{"normalizer",
                                                {"softmax", "entmax", "power", "power_unnormalized"}};
}

void Normalizer::validate(const AttentionShape& shape) const {
  if (kind == NormalizerKind::softmax) return;
  if (alpha.size() != 1 && static_cast<int64_t>(alpha.size()) != shape.q_heads) {
    throw InvalidArgument(fmt::format("alpha has {} entries; allowed: 1, or {} (one a query head)",
                                      alpha.size(), shape.q_heads));
  }
  const double lowest = kind == NormalizerKind::entmax ? 1.0 : 0.0;
  for (const double a : alpha) {
    if (!std::isfinite(a) || a <= lowest) {
      throw InvalidArgument(
          fmt::format("alpha is {}; {} needs a finite alpha > {}", a, to_string(kind), lowest));
    }
  }
}

std::string_view to_string(NormalizerKind kind) {
  return kNormalizers[kind];
}

NormalizerKind normalizer_from_string(std::string_view name) {
  return kNormalizers.kind_of(name);
}

}  // namespace splash
