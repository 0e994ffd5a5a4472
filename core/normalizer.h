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

struct Normalizer {
  NormalizerKind kind = NormalizerKind::entmax;
  std::vector<double> alpha{1.5};  // one for all, or one a query head; softmax ignores it

  double alpha_of(int64_t q_head) const { return alpha.size() == 1 ? alpha.front() : alpha[q_head]; }

  // Throws InvalidArgument unless alpha has 1 or q_heads entries, each finite, and > 1 for entmax, > 0 for
  // power.
  void validate(const AttentionShape& shape) const;
};

std::string_view to_string(NormalizerKind kind);
NormalizerKind normalizer_from_string(std::string_view name);  // throws InvalidArgument

}  // namespace splash
