#pragma once
// Counter-based random numbers: the same on every machine and for any number of threads.

#include <cmath>
#include <cstdint>
#include <numbers>

namespace splash {

// Draw number `counter` of stream `seed`, by SplitMix64's output function (Steele, Lea, Flood 2014) over two
// words.
class CounterRandom {
 public:
  explicit constexpr CounterRandom(uint64_t seed) : key_(mix(seed + kGolden)) {}

  constexpr uint64_t bits(uint64_t counter) const { return mix(key_ ^ mix(counter * kGolden + kGolden)); }

  // In (0, 1): never 0, so that its logarithm is finite.
  constexpr double uniform(uint64_t counter) const {
    return (static_cast<double>(bits(counter) >> 11) + 0.5) * 0x1.0p-53;
  }

  // Standard normal (Box and Muller 1958).
  double normal(uint64_t counter) const {
    const double radius = std::sqrt(-2.0 * std::log(uniform(2 * counter)));
    return radius * std::cos(2.0 * std::numbers::pi * uniform(2 * counter + 1));
  }

  // An independent stream, for example one per tensor.
  constexpr CounterRandom stream(uint64_t index) const { return CounterRandom(bits(index ^ 0x5bd1e995u)); }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  static constexpr uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  uint64_t key_;
};

}  // namespace splash
