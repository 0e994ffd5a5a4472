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

// Which alpha entmax takes. Nearer to 1 it is softmax to all digits that count, and (alpha - 1) s loses the
// scores' own; above, the power 1/(alpha-1) of the smallest number is no longer small.
inline constexpr double kLeastAlpha = 1.000001, kMostAlpha = 64;

constexpr bool entmax_takes(double alpha) {  // false for NaN
  return alpha >= kLeastAlpha && alpha <= kMostAlpha;
}

// Throws InvalidArgument unless entmax takes it; `name` is what the user calls it.
void require_entmax_alpha(double alpha, std::string_view name = "alpha");

struct Normalizer {
  NormalizerKind kind = NormalizerKind::entmax;
  std::vector<double> alpha{1.5};  // one for all, or one a query head; softmax ignores it

  double alpha_of(int64_t q_head) const { return alpha.size() == 1 ? alpha.front() : alpha[q_head]; }

  // Throws InvalidArgument unless alpha has 1 or q_heads entries, each one that entmax takes, or finite and
  // > 0 for power.
  void validate(const AttentionShape& shape) const;
};

std::string_view to_string(NormalizerKind kind);
NormalizerKind normalizer_from_string(std::string_view name);  // throws InvalidArgument

}  // namespace splash
