#pragma once
// Finds tau of a row whose scores are summed, never stored. With u = gain (score - pivot) + shift = z - tau,
// f(shift) = sum of u_+^beta is convex and rises; the root is the shift where f = 1. One pass over the scores
// gives f and its slope at one shift. Each pass recomputes Q K^T, so the number of passes decides the cost.
// Compiles without nvcc.

#include <cmath>

#include "core/host_device.h"

namespace splash::gpu::entmax {

// settled: f is 1 within tau's precision; the shift stays. near: the shift moved, and the next pass should
// settle it. far: the shift moved, and more passes may follow.
enum class Progress { settled, near, far };

struct ThresholdRoot {
  static constexpr float kTolerance = 4e-6f;  // of f

  float shift = 0;
  float above = INFINITY, below = -INFINITY;           // f(above) >= 1 > f(below)
  float last_shift = 0, last_sum = 0, last_slope = 0;  // of the previous pass; slope 0: there was none

  // The largest score has p <= 1, which bounds the shift from above. excess: its u at a shift of 0.
  SPLASH_HOST_DEVICE void cap(float excess) { above = fminf(above, 1 - excess); }

  // Drops the bracket and the previous pass, which a found root no longer needs. If the root was not found
  // after all, two more passes restore them.
  SPLASH_HOST_DEVICE void forget() {
    above = INFINITY;
    below = -INFINITY;
    last_shift = last_sum = last_slope = 0;
  }

  // The step to f's root if f^(1/k) were linear. From the right (f >= 1), k = beta never passes the root: the
  // beta-norm of u_+ is convex in the shift. k = beta + 2 fits the tail of a Gaussian.
  static SPLASH_HOST_DEVICE float step_of_power(float sum, float slope, float beta) {
    const float k = sum > 16 ? beta : beta + 2;
    return k * sum / slope * (1 - exp2f(-log2f(sum) / k));
  }

  // Moves the shift by sums over a part of the keys, scaled to all keys. Such sums give no bracket. Where no
  // score has u > 0, the shift moves half way back to last_shift, the last one at which a part had f >= 1.
  SPLASH_HOST_DEVICE void guess(float sum, float slope, float beta) {
    if (sum >= 1) last_shift = shift;
    const float next = sum > 0 ? shift - step_of_power(sum, slope, beta) : 0.5f * (shift + last_shift);
    if (fabsf(next) < INFINITY) shift = fminf(next, above);
  }

  // Moves the shift by sums over all keys at `shift`.
  SPLASH_HOST_DEVICE Progress advance(float sum, float slope, float beta) {
    const float error = sum - 1;
    const bool capped = shift > above;  // the largest score was not known yet
    if (error >= 0) {
      above = fminf(above, shift);
    } else {
      below = fmaxf(below, shift);
    }
    if (!(slope > 0)) return move_to(above);
    const float model = (beta + 1) / (beta + 2) * slope * slope / sum;
    float curvature = model;
    bool measured = false;
    if (last_slope > 0) {  // of the cubic through this pass and the previous one
      const float h = shift - last_shift;
      const float cubic = 2 / h * (last_slope + 2 * slope - 3 * (sum - last_sum) / h);
      measured = cubic > 0.25f * model && cubic < 2 * model;
      if (measured) curvature = cubic;
    }
    const float root = sqrtf(fmaxf(slope * slope - 2 * curvature * error, 0.0f));
    const float step = fabsf(error) > 0.5f ? step_of_power(sum, slope, beta) : 2 * error / (slope + root);
    if (!capped && (fabsf(error) <= kTolerance || fabsf(step) <= 1.2e-7f * fabsf(shift)))
      return Progress::settled;
    float next = shift - step;
    if (error >= 0) {
      if (!(next > below)) next = shift - error / slope;
      next = fminf(next, above);
    }
    if (!(next > below && next <= above)) next = 0.5f * (below + above);
    last_shift = shift;
    last_sum = sum;
    last_slope = slope;
    const float correction = 0.5f * curvature * step * step;
    const bool near = !capped && correction <= (measured ? 1e-4f : 2e-5f);
    return near ? (move_to(next) == Progress::settled ? Progress::settled : Progress::near) : move_to(next);
  }

 private:
  SPLASH_HOST_DEVICE Progress move_to(float next) {
    if (next == shift || !(fabsf(next) < INFINITY)) return Progress::settled;
    shift = next;
    return Progress::far;
  }
};

}  // namespace splash::gpu::entmax
