#pragma once
// One row of decode: scores of some of its keys, and the row's results from them.

#include <cmath>
#include <limits>
#include <span>

#include "cpu_ref/decode/decode.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

struct DecodeRow {
  int64_t sequence, head, query, kv_head, end, begin, sinks;
  double alpha, gain;  // z = gain <q, k>
  const double* q;

  DecodeRow(const PagedCache& cache, const DecodeInputs& inputs, int64_t b, int64_t h, int64_t i)
      : sequence(b),
        head(h),
        query(i),
        kv_head(h / (inputs.q.heads() / cache.kv_heads)),
        end(cache.lengths[static_cast<size_t>(b)] - (inputs.q.length() - 1 - i)),
        begin(inputs.window > 0 ? end - inputs.window : 0),
        sinks(inputs.sinks),
        alpha(inputs.of_head(inputs.alpha, h)),
        gain((alpha - 1) * inputs.of_head(inputs.scale, h)),
        q(inputs.q.view().row(b, h, i)) {}

  bool sees(int64_t key) const { return key < end && (key >= begin || key < sinks); }

  // z of a key; -inf where the row does not see it.
  double z(const PagedCache& cache, int64_t key) const {
    const double* k = sees(key) ? cache.at(cache.keys, sequence, kv_head, key) : nullptr;
    if (k == nullptr) return -std::numeric_limits<double>::infinity();
    double sum = 0;
    for (int64_t c = 0; c < cache.head_dim; ++c) sum += q[c] * k[c];
    return gain * sum;
  }

  // Solves the row over these keys, in key order; z: of each.
  void solve(const PagedCache& cache, std::span<const int64_t> keys, std::span<const double> z,
             DecodeRows& rows) const;
};

DecodeRows empty_rows(const PagedCache& cache, const DecodeInputs& inputs);  // checked

}  // namespace splash::cpu_ref
