#pragma once
// Plain arithmetic of the portable path, tested on the CPU: bounds of tau, and the k-th largest score.
// Compiles without nvcc.

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "gpu/entmax/math/ordered_bits.h"

namespace splash::gpu::entmax::portable {

// In units of z. Float sums leave tau off by about 10^-6; a bound rules out only keys that lie this much
// farther below it.
inline constexpr float kSlack = 0x1p-16f;

// What the keys seen so far tell about a row: its largest score, and a lower bound of tau. The bound is held
// as shift = z of the largest score - tau, between 0 and 1, so that sums of weights keep their precision
// however large the scores are. Scores are <q, k>; z = gain * score.
struct Bound {
  float largest = -INFINITY;
  float shift = 1;             // at least gain * largest - tau: for the largest key alone has p <= 1
  float threshold = -FLT_MAX;  // a score below it has p = 0. So has -inf, always. +inf: the row takes none

  // Takes in the largest of more scores. tau does not fall, so the shift grows by at most as much (in z) as
  // the new largest score lies above the old one. A given shift stays.
  SPLASH_HOST_DEVICE void see(float score, float gain, bool given = false) {
    if (!(score > largest)) return;
    const float grown = fminf(1.0f, shift + gain * (score - largest));  // +inf and NaN: 1
    shift = given ? shift : grown;
    largest = score;
    aim(gain);
  }

  // Lowers the shift by a Newton step. sum, slope: sums over some of the row's keys, at this shift, of u^beta
  // and u^(beta - 1), where u = gain * (score - largest) + shift. The tau of some keys is at most that of
  // all. For beta >= 1 the beta-norm of u, sum^(1/beta), is convex in the shift: so Newton's step on it from
  // above the root, where the norm is 1, never passes the root.
  SPLASH_HOST_DEVICE void lower(float sum, float slope, float beta) {
    if (!(sum > 1 && slope > 0)) return;
    const bool near = sum < 1.5f;  // where Newton's step on the sum itself is as good, and rounds less
    const float step = near ? (sum - 1) / (beta * slope) : sum / slope * (1 - exp2f(-log2f(sum) / beta));
    if (step > 0) shift -= step;
  }

  // Raises the threshold to what the shift allows: despite rounding never above largest - shift / gain.
  SPLASH_HOST_DEVICE void aim(float gain) {
    const float at = largest - (shift + kSlack) / gain;
    threshold = fmaxf(threshold, at - 0x1p-22f * fabsf(largest));  // NaN: stays
  }
};

// Whether a key comes before another in the order of a row's largest: of equal scores, the lower key first.
SPLASH_HOST_DEVICE bool precedes(float score, int key, float other_score, int other_key) {
  return score > other_score || (score == other_score && key < other_key);
}

// The index of the n-th set bit of the mask, n from 0 to below the number of set bits.
SPLASH_HOST_DEVICE int nth_set_bit(uint64_t mask, int n) {
  for (int i = 0; i < n && i < 64; ++i) mask &= mask - 1;
  int bit = 0;
  for (; bit < 63 && (mask >> bit & 1) == 0;) ++bit;
  return bit;
}

// Finds the k-th largest of the row's scores by a radix search over ordered_bits: digit by digit from the
// highest, each digit from a histogram of the scores that share the digits found so far.
struct DigitSearch {
  static constexpr int kBits = 4, kBins = 1 << kBits, kDigits = 32 / kBits;

  bool limited = false;  // the row has k scores or more; else all are kept
  uint32_t prefix = 0;   // the digits found so far
  uint32_t need = 0;     // its rank, from 1, among the scores that share them
  uint32_t ties = 0;     // once all digits are found: how many scores equal it

  SPLASH_HOST_DEVICE void begin(uint32_t k) {
    limited = true;
    need = k;
  }
  // digit: from kDigits - 1 to 0. The bin of a score, or -1 where it does not share the digits found so far.
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
    limited = false;  // fewer than k scores in all; happens at the first digit only
  }
};

}  // namespace splash::gpu::entmax::portable
