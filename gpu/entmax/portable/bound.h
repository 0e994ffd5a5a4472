#pragma once
// Plain arithmetic of the portable path, tested on the CPU. Compiles without nvcc.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "gpu/entmax/math/host_device.h"

namespace splash::gpu::entmax::portable {

// tau's sums in float may be off by some 10^-6 of z; what a bound rules out lies farther below it.
inline constexpr float kSlack = 0x1p-16f;

// What the keys seen so far tell of a row: its largest score, and a lower bound of tau. tau is held as shift
// = z of the largest score - tau, between 0 and 1, so that sums of weights keep their precision however large
// the scores are. Scores are <q, k>; z = gain * score.
struct Bound {
  float largest = -INFINITY;
  float shift = 1;             // at least gain * largest - tau: for the largest key alone has p <= 1
  float threshold = -FLT_MAX;  // a score below it has p = 0. So has -inf, always. +inf: the row takes none

  // The largest of more scores. tau does not fall, so in units of the new largest score the shift grows by as
  // much as that lies above the old one; a shift that is given stays.
  SPLASH_HOST_DEVICE void see(float score, float gain, bool given = false) {
    if (!(score > largest)) return;
    const float grown = fminf(1.0f, shift + gain * (score - largest));  // +inf and NaN: 1
    shift = given ? shift : grown;
    largest = score;
    aim(gain);
  }

  // Sums over some of the row's keys, at this shift: of u^beta, and of u^(beta - 1), where u = gain * (score
  // - largest) + shift. tau of some keys is at most that of all. The beta-norm of u, sum^(1/beta), is convex
  // in the shift, for beta >= 1: so Newton's step on it from above the root, where the norm is 1, never
  // passes the root.
  SPLASH_HOST_DEVICE void lower(float sum, float slope, float beta) {
    if (!(sum > 1 && slope > 0)) return;
    const bool near = sum < 1.5f;  // where Newton's step on the sum itself is as good, and rounds less
    const float step = near ? (sum - 1) / (beta * slope) : sum / slope * (1 - exp2f(-log2f(sum) / beta));
    if (step > 0) shift -= step;
  }

  // Raises the threshold to what the shift says: never above largest - shift / gain, whatever is rounded.
  SPLASH_HOST_DEVICE void aim(float gain) {
    const float at = largest - (shift + kSlack) / gain;
    threshold = fmaxf(threshold, at - 0x1p-22f * fabsf(largest));  // NaN: stays
  }
};

// Whether one key stands before the other among a row's largest: of equal scores, the lower key.
SPLASH_HOST_DEVICE bool precedes(float score, int key, float other_score, int other_key) {
  return score > other_score || (score == other_score && key < other_key);
}

// Bits whose order as unsigned numbers is that of the floats; -0 and 0 are the same.
SPLASH_HOST_DEVICE uint32_t ordered_bits(float x) {
  x += 0.0f;
  uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
SPLASH_HOST_DEVICE float from_ordered_bits(uint32_t ordered) {
  const uint32_t bits = ordered ^ ((ordered >> 31) != 0 ? 0x80000000u : 0xFFFFFFFFu);
  float x = 0;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Which bit of the mask is the n-th that is set, from 0; n is below their number.
SPLASH_HOST_DEVICE int nth_set_bit(uint64_t mask, int n) {
  for (int i = 0; i < n && i < 64; ++i) mask &= mask - 1;
  int bit = 0;
  for (; bit < 63 && (mask >> bit & 1) == 0;) ++bit;
  return bit;
}

// The k-th largest of the row's scores, digit by digit from the highest, each from a histogram of the scores
// that share the digits before.
struct DigitSearch {
  static constexpr int kBits = 4, kBins = 1 << kBits, kDigits = 32 / kBits;

  bool limited = false;  // the row has more than k scores; else all are kept
  uint32_t prefix = 0;   // the digits known
  uint32_t need = 0;     // the how-manieth it is among the scores that share them
  uint32_t ties = 0;     // when all digits are known: scores that are equal to it

  SPLASH_HOST_DEVICE void begin(uint32_t k) {
    limited = true;
    need = k;
  }
  // digit: from kDigits - 1 to 0. The bin of a score, or -1 where it does not share the digits known.
  SPLASH_HOST_DEVICE int bin(uint32_t ordered, int digit) const {
    const uint32_t upto = ordered >> (kBits * digit);
    return digit == kDigits - 1 || upto >> kBits == prefix ? static_cast<int>(upto % kBins) : -1;
  }
  template <class Histogram>
  SPLASH_HOST_DEVICE void take(const Histogram& counts) {
    uint32_t above = 0;
    for (int i = kBins - 1; i >= 0; --i) {
      const uint32_t here = counts[i];
      if (above + here >= need) {
        prefix = prefix << kBits | static_cast<uint32_t>(i);
        need -= above;
        ties = here;
        return;
      }
      above += here;
    }
    limited = false;  // fewer than k in all: of the first digit only
  }
};

}  // namespace splash::gpu::entmax::portable
