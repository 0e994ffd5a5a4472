#pragma once
// Products of extents that come from files and users. A product of 2^63 or more is an overflow, not a size.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>

namespace splash {

// The product of extents, 1 if there are none. Empty if an extent is negative or the product does not fit.
inline std::optional<int64_t> checked_product(std::span<const int64_t> extents) {
  int64_t product = 1;
  bool fits = true, zero = false;
  for (const int64_t extent : extents) {
    if (extent < 0) return std::nullopt;
    zero = zero || extent == 0;
    fits = fits && !__builtin_mul_overflow(product, extent, &product);
  }
  if (zero) return 0;  // whatever the other extents are
  return fits ? std::optional(product) : std::nullopt;
}

inline std::optional<int64_t> checked_product(std::initializer_list<int64_t> extents) {
  return checked_product(std::span(extents.begin(), extents.size()));
}

// The number as a count. Empty unless it is a whole number from 0 to 2^53, the range in which doubles are
// exact.
inline std::optional<int64_t> checked_count(double number) {
  constexpr double kLargest = static_cast<double>(int64_t{1} << std::numeric_limits<double>::digits);
  if (!(number >= 0 && number <= kLargest)) return std::nullopt;
  const auto count = static_cast<int64_t>(number);
  return static_cast<double>(count) == number ? std::optional(count) : std::nullopt;
}

}  // namespace splash
