#include "core/distance_bias.h"

#include <cmath>

#include <fmt/format.h>

#include "core/error.h"

namespace splash {

void DistanceBias::validate(const AttentionShape& shape) const {
  if (!any() && distances == 0) return;
  if (distances < 1 || static_cast<int64_t>(table.size()) != shape.q_heads * distances)
    throw InvalidArgument(
        fmt::format("bias has {} entries; allowed: {} heads times {} distances, of which there is at least 1",
                    table.size(), shape.q_heads, distances));
  constexpr int64_t kMost = int64_t{1} << 30;  // kernels count distances in 32 bits
  if (distances > kMost || first < -kMost || first > kMost)
    throw InvalidArgument(fmt::format(
        "bias has {} distances from {} on; allowed: up to 2^30, from -2^30 to 2^30", distances, first));
  for (const double x : table)
    if (!std::isfinite(x)) throw InvalidArgument(fmt::format("a bias is {}; it must be finite", x));
}

}  // namespace splash
