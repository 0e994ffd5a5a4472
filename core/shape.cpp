#include "core/shape.h"

#include <limits>

#include <fmt/format.h>

#include "core/checked.h"
#include "core/error.h"

namespace splash {
namespace {

// Limit for elements and pairs: their bytes, even several times that, still fit in 63 bits.
constexpr int64_t kMostElements = int64_t{1} << 56;

}  // namespace

void AttentionShape::validate() const {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", name, value));
  };
  positive("batch", batch);
  positive("q_heads", q_heads);
  positive("kv_heads", kv_heads);
  positive("q_len", q_len);
  positive("kv_len", kv_len);
  positive("head_dim", head_dim);
  if (kv_len > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument(fmt::format("kv_len is {}; it must be at most {}, the largest 32-bit key index",
                                      kv_len, std::numeric_limits<int32_t>::max()));
  }
  if (q_heads % kv_heads != 0) {
    throw InvalidArgument(fmt::format(
        "q_heads is {} and kv_heads is {}; q_heads must be a multiple of kv_heads", q_heads, kv_heads));
  }
  const auto bounded = [&](const char* what, std::initializer_list<int64_t> extents) {
    if (checked_product(extents).value_or(kMostElements + 1) <= kMostElements) return;
    throw InvalidArgument(
        fmt::format("{} has more {} than 2^56, the most that are counted", to_string(*this), what));
  };
  bounded("queries' elements", {batch, q_heads, q_len, head_dim});
  bounded("keys' elements", {batch, kv_heads, kv_len, head_dim});
  bounded("pairs of query and key", {batch, q_heads, q_len, kv_len});
}

std::string to_string(const AttentionShape& s) {
  return fmt::format("B {}, H {}/{}, N {}/{}, d {}", s.batch, s.q_heads, s.kv_heads, s.q_len, s.kv_len,
                     s.head_dim);
}

}  // namespace splash
