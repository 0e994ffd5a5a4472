#pragma once
// Dropout of attention's probabilities (Srivastava et al. 2014): each is set to 0 with probability `rate`,
// the others are divided by 1 - rate. The threshold and the support are those of the probabilities before it.

#include <cstdint>

#include "core/random.h"

namespace splash {

struct Dropout {
  double rate = 0;  // 0 <= rate < 1; 0 drops nothing
  uint64_t seed =
      0;  // a draw depends on seed, row and key alone: the same on every device, forward and backward

  bool drops() const { return rate > 0; }
};

// Which probabilities of one row stay. row: (batch * q_heads + q_head) * q_len + query.
class DropoutRow {
 public:
  constexpr DropoutRow(uint64_t threshold, uint64_t seed, int64_t row)
      : threshold_(threshold), random_(CounterRandom(seed).stream(static_cast<uint64_t>(row))) {}
  DropoutRow(const Dropout& dropout, int64_t row)
      : DropoutRow(threshold_of(dropout.rate), dropout.seed, row) {}

  // Of a rate of 0 it keeps all, and draws nothing.
  constexpr bool keeps(int64_t key) const {
    return threshold_ == 0 || random_.bits(static_cast<uint64_t>(key)) >= threshold_;
  }

  // A draw of 64 bits below it drops its probability.
  static constexpr uint64_t threshold_of(double rate) { return static_cast<uint64_t>(rate * 0x1.0p64); }

 private:
  uint64_t threshold_;
  CounterRandom random_;
};

}  // namespace splash
