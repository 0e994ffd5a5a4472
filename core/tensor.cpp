#include "core/tensor.h"

#include <fmt/format.h>

#include "core/error.h"

namespace splash {

void require_extents(const char* name, const std::array<int64_t, 4>& extents, int64_t batch, int64_t heads,
                     int64_t length, int64_t dim) {
  const std::array<int64_t, 4> needed{batch, heads, length, dim};
  if (extents == needed) return;
  throw InvalidArgument(fmt::format("{} has shape [{}]; it must be [{}]", name, fmt::join(extents, ", "),
                                    fmt::join(needed, ", ")));
}

}  // namespace splash
