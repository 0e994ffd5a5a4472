#include "core/tensor.h"

#include <fmt/format.h>

#include "core/checked.h"
#include "core/error.h"

namespace splash {

size_t tensor_size(int64_t batch, int64_t heads, int64_t length, int64_t dim) {
  const auto elements = checked_product({batch, heads, length, dim});
  if (elements) return static_cast<size_t>(*elements);
  throw InvalidArgument(
      fmt::format("a tensor of extents [{}, {}, {}, {}] cannot be: each must be 0 or more, "
                  "their product less than 2^63",
                  batch, heads, length, dim));
}

void require_extents(const char* name, const std::array<int64_t, 4>& extents, int64_t batch, int64_t heads,
                     int64_t length, int64_t dim) {
  const std::array<int64_t, 4> needed{batch, heads, length, dim};
  if (extents == needed) return;
  throw InvalidArgument(fmt::format("{} has shape [{}]; it must be [{}]", name, fmt::join(extents, ", "),
                                    fmt::join(needed, ", ")));
}

}  // namespace splash
