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

void require_entmax_alpha(double alpha, std::string_view name) {
  if (entmax_takes(alpha)) return;
  throw InvalidArgument(fmt::format("{} is {}; entmax takes {} to {} (towards 1 it becomes softmax)", name,
                                    alpha, kLeastAlpha, kMostAlpha));
}

void Normalizer::validate(const AttentionShape& shape) const {
  if (kind == NormalizerKind::softmax) return;
  if (alpha.size() != 1 && static_cast<int64_t>(alpha.size()) != shape.q_heads) {
    throw InvalidArgument(fmt::format("alpha has {} entries; allowed: 1, or {} (one a query head)",
                                      alpha.size(), shape.q_heads));
  }
  for (const double a : alpha) {
    if (kind == NormalizerKind::entmax) {
      require_entmax_alpha(a);
    } else if (!std::isfinite(a) || a <= 0) {
      throw InvalidArgument(fmt::format("alpha is {}; {} needs a finite alpha > 0", a, to_string(kind)));
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
