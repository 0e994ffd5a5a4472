#include "core/selection.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"

namespace splash {
namespace {
constexpr std::array<std::string_view, 4> kNames{"all", "top_k_row", "top_k_block", "significant_blocks"};
}

void Selection::validate() const {
  if (k_keep < 1) throw InvalidArgument(fmt::format("k_keep is {}; it must be at least 1", k_keep));
  if (block < 1) throw InvalidArgument(fmt::format("selection block is {}; it must be at least 1", block));
  if (!std::isfinite(margin))
    throw InvalidArgument(fmt::format("selection margin is {}; it must be finite", margin));
}

std::string_view to_string(SelectionKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

SelectionKind selection_from_string(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<SelectionKind>(i);
  }
  throw InvalidArgument(fmt::format("selection '{}' is unknown; allowed: {}", name, fmt::join(kNames, ", ")));
}

}  // namespace splash
