#pragma once
// The gradient of one row of entmax (Peters, Niculae, Martins 2019): p = w / W, w = x^beta, W = sum w, x the
// excess, beta = 1 / (alpha - 1), and u = x^(beta - 1), the slope of w. With g = <dO, v>: delta = sum u g /
// sum u, ds = scale u (g - delta), dL/dalpha = beta sum (g - delta) p (beta - ln p).
//
// Where the threshold was given (cpu_ref/attention/given_threshold.h), it does not depend on the scores:
// delta = sum p g, ds = scale u / W (g - delta), dL/dalpha = -beta^2 sum (g - delta) p (1/r - 1 + ln r) with
// r = x / shift.

#include <cfloat>

#include "gpu/entmax/backward/problem.h"
#include "gpu/entmax/entmax.h"

namespace splash::gpu::entmax::backward {

// Within 2 units in the last place, in a few instructions.
__device__ __forceinline__ float quotient(float a, float b) {
  return __fdividef(a, b);
}

struct Weights {
  float w, u;
};

struct Entmax {
  float alpha, beta;

  __device__ Entmax(const BackwardProblem& p, uint32_t head)
      : alpha(p.alpha[p.alphas == 1 ? 0 : head % p.q_heads]), beta(quotient(1.0f, alpha - 1)) {}

  __device__ Weights operator()(float excess) const {
    if (alpha == 1.5f) return {excess * excess, excess};
    if (alpha == 2.0f) return {excess, excess == excess ? 1.0f : excess};  // NaN stays NaN
    const float w = powf(excess, beta);
    return {w, quotient(w, excess)};
  }
};

// m - tau of a row whose threshold was given, else 0.
__device__ __forceinline__ float given_shift(const BackwardProblem& p, const Entmax& entmax, uint32_t row) {
  return p.tau_offsets == nullptr
             ? 0.0f
             : shift_of_offset(p.tau_offsets[row], entmax.beta, static_cast<int>(p.kv_len));
}

// The sums over a row's entries that each entry's gradient needs.
struct RowSums {
  float w = 0, u = 0, ug = 0;  // ug: sum of u g, or of w g where the threshold was given

  __device__ void add(Weights x, float g, bool given = false) {  // given: the threshold was
    w += x.w;
    u += x.u;
    ug = fmaf(given ? x.w : x.u, g, ug);
  }
};

struct RowGradient {
  float delta, inverse_sum, scale, beta;
  bool alone;  // a row's only entry has p = 1 whatever its score: so its ds is 0, whatever g is

  __device__ RowGradient(const BackwardProblem& p, const Entmax& entmax, const RowSums& sums, uint32_t count)
      : delta(quotient(sums.ug, p.tau_offsets == nullptr ? sums.u : sums.w)),
        inverse_sum(quotient(1.0f, sums.w)),
        scale(p.tau_offsets == nullptr ? p.scale : p.scale * inverse_sum),
        beta(entmax.beta),
        alone(count == 1) {}

  __device__ float centred(float g) const { return alone ? 0 : g - delta; }
  __device__ float probability(Weights x) const { return x.w * inverse_sum; }
  __device__ float score(Weights x, float g) const { return scale * x.u * centred(g); }
};

// What modifies a row's entries beside entmax: dropout of probabilities, the cap of scores, and a sink. A
// capped score s is (excess + tau) / (alpha - 1), less its bias, and its derivative by the score before the
// cap is 1 - (s / softcap)^2. A sink is an entry whose g is 0.
class Modified {
 public:
  __device__ Modified(const BackwardProblem& p, const Entmax& entmax, uint32_t row, uint32_t head)
      : dropout_(p.dropout, row),
        tau_(p.tau != nullptr ? p.tau[row] : 0.0f),
        to_share_(p.softcap > 0 ? 1 / ((entmax.alpha - 1) * p.softcap) : 0.0f),
        softcap_(p.softcap),
        bias_(p.bias),
        of_head_(p.bias.of_head(static_cast<int>(head % p.q_heads))),
        query_(static_cast<int>(row % p.q_len)),
        sink_(p.sinks != nullptr ? fmaf(entmax.alpha - 1, p.sinks[head % p.q_heads], -tau_) : 0.0f) {}

  // What p is multiplied by in the output.
  __device__ float weight(uint32_t key) const { return dropout_.of(key); }
  // dL/dp of the product <dO, v>, which where p is dropped may be NaN.
  __device__ float d_p(uint32_t key, float product) const {
    const float factor = weight(key);
    return factor > 0 ? factor * product : 0;
  }
  __device__ float slope(float excess, uint32_t key) const {
    float share = (excess + tau_) * to_share_;
    if (to_share_ > 0 && bias_.table != nullptr)
      share -= of_head_[bias_.entry(query_, static_cast<int>(key))] / softcap_;
    return 1 - share * share;
  }
  __device__ bool has_sink() const { return sink_ > 0; }  // with a probability above 0
  __device__ float sink() const { return sink_; }         // its excess

 private:
  DropoutFactors dropout_;
  float tau_, to_share_, softcap_;
  const DeviceBias& bias_;  // among the kernel's parameters
  const float* of_head_;    // the bias's entries
  int query_;
  float sink_;
};

// The same of a problem without any: kernels compiled for it cost what they cost before there were
// modifications.
struct Unmodified {
  __device__ Unmodified(const BackwardProblem& /*p*/, const Entmax& /*entmax*/, uint32_t /*row*/,
                        uint32_t /*head*/) {}
  __device__ float weight(uint32_t /*key*/) const { return 1; }
  __device__ float d_p(uint32_t /*key*/, float product) const { return product; }
  __device__ float slope(float /*excess*/, uint32_t /*key*/) const { return 1; }
  __device__ static constexpr bool has_sink() { return false; }
  __device__ static constexpr float sink() { return 0; }
};

// p (beta - ln p) = u h(x) / W with h(x) = x (beta - beta ln x + ln W). As sum u (g - delta) is 0, any
// constant may be subtracted from h. Subtracting h of the mean x (weighted by u) leaves little to cancel
// where the x are alike.
struct AlphaGradient {
  float beta, log_sum, mean_h, factor;
  float shift;  // of a given threshold, else 0

  __device__ AlphaGradient(const RowGradient& row, const RowSums& sums, float shift = 0)
      : beta(row.beta),
        log_sum(logf(sums.w)),
        mean_h(h(sums.w / sums.u)),
        factor(beta * row.inverse_sum),
        shift(shift) {}

  __device__ float operator()(float x, float u, float centred) const {
    if (shift > 0) return -factor * beta * u * centred * rise(x);
    return factor * u * centred * (h(x) - mean_h);
  }

 private:
  // x (1/r - 1 + ln r), r = x / shift, 0 < x <= shift. It is finite for the smallest x too. For r near 1 by
  // the series in 1 - r, as the terms would cancel.
  __device__ float rise(float x) const {
    const float d = (shift - x) / shift;
    if (d > 0.25f) return fmaf(x, logf(fmaxf(x / shift, FLT_MIN)), shift - x);
    float sum = 0;
    for (int k = 12; k >= 2; --k) sum = fmaf(sum, d, 1 - 1.0f / static_cast<float>(k));
    return x * sum * d * d;
  }

  __device__ float h(float x) const { return x * (beta - beta * logf(x) + log_sum); }
};

// dL/dsink of a row whose sums include the sink.
template <class Modifications>
__device__ __forceinline__ float sink_gradient(const Modifications& modifications, const Entmax& entmax,
                                               const RowGradient& gradient) {
  return modifications.has_sink() ? -entmax(modifications.sink()).u * gradient.delta : 0.0f;
}

}  // namespace splash::gpu::entmax::backward
