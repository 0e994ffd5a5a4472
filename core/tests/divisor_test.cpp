#include "core/divisor.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>

#include <doctest/doctest.h>

using namespace splash;

namespace {

constexpr uint32_t kMost = (1u << 31) - 1;

// Whether all quotients near the divisor's multiples, and of random numbers, are exact.
bool divides(uint32_t divisor, std::mt19937& random) {
  const Divisor by(divisor);
  std::uniform_int_distribution<uint32_t> any(0, kMost);
  for (int i = 0; i < 200; ++i) {
    const uint32_t n = any(random), multiple = n / divisor * divisor;
    const std::array<uint32_t, 5> numbers{n, multiple, std::max(multiple, 1u) - 1,
                                          kMost / divisor * divisor - 1, kMost};
    for (const uint32_t number : numbers) {
      if (number <= kMost && by.quotient(number) != number / divisor) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("a divisor's quotients are exact") {
  std::mt19937 random(1);
  CHECK(Divisor().quotient(kMost) == kMost);
  for (uint32_t divisor = 1; divisor < 2000; ++divisor) REQUIRE(divides(divisor, random));
  for (int bit = 11; bit < 31; ++bit) {
    for (const uint32_t divisor : {(1u << bit) - 1, 1u << bit, (1u << bit) + 1}) {
      CAPTURE(divisor);
      CHECK(divides(divisor, random));
    }
  }
  CHECK(divides(kMost, random));
  std::uniform_int_distribution<uint32_t> any(1, kMost);
  for (int i = 0; i < 2000; ++i) REQUIRE(divides(any(random), random));
}
