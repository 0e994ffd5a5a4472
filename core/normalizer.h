#pragma once
// What turns a row of scores into probabilities.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"

namespace splash {

enum class NormalizerKind {
  softmax,
  entmax,              // p = [(alpha-1)s - tau]_+^(1/(alpha-1)), sum p = 1 (Peters, Niculae, Martins 2019)
  power,               // w = max(s, 0)^alpha, p = w / sum w
  power_unnormalized,  // p = max(s, 0)^alpha, as source document 000 writes it
};

// The alphas that entmax takes. Below, entmax equals softmax to all significant digits, and (alpha - 1) s
// loses the digits of s. Above, the power 1/(alpha-1) of the smallest number is no longer small.
inline constexpr double kLeastAlpha = 1.000001, kMostAlpha = 64;

constexpr bool entmax_takes(double alpha) {  // false for NaN
  return alpha >= kLeastAlpha && alpha <= kMostAlpha;
}

// Throws InvalidArgument unless entmax takes this alpha; `name` is the user's name for it.
void require_entmax_alpha(double alpha, std::string_view name = "alpha");

struct Normalizer {
  NormalizerKind kind = NormalizerKind::entmax;
  std::vector<double> alpha{1.5};  // one for all heads, or one per query head; softmax ignores it

  double alpha_of(int64_t q_head) const { return alpha.size() == 1 ? alpha.front() : alpha[q_head]; }

  // Throws InvalidArgument unless alpha has 1 or q_heads entries, and each is one that entmax takes or, for
  // power, finite and > 0.
  void validate(const AttentionShape& shape) const;
};

std::string_view to_string(NormalizerKind kind);
NormalizerKind normalizer_from_string(std::string_view name);  // throws InvalidArgument

}  // namespace splash
