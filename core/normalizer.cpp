#include "core/normalizer.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"

namespace splash {
namespace {
constexpr std::array<std::string_view, 4> kNames{"softmax", "entmax", "power", "power_unnormalized"};
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
  return kNames[static_cast<size_t>(kind)];
}

NormalizerKind normalizer_from_string(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<NormalizerKind>(i);
  }
  throw InvalidArgument(
      fmt::format("normalizer '{}' is unknown; allowed: {}", name, fmt::join(kNames, ", ")));
}

}  // namespace splash
