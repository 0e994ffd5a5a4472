#pragma once
// One row of decode: which keys it sees, and its results from their scores.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "core/error.h"
#include "cpu_ref/decode/decode.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

struct DecodeRow {
  int64_t sequence, head, query, kv_head, end, begin, sinks;
  double alpha, gain;  // z = gain <q, k>
  const double* q;

  template <class Cache>
  DecodeRow(const Cache& cache, const DecodeInputs& inputs, int64_t b, int64_t h, int64_t i)
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

  // z of a key's numbers.
  double z_of(const double* k, int64_t head_dim) const {
    double sum = 0;
    for (int64_t c = 0; c < head_dim; ++c) sum += q[c] * k[c];
    return gain * sum;
  }
  // z of a key; -inf where the row does not see it.
  double z(const PagedCache& cache, int64_t key) const {
    const double* k = sees(key) ? cache.at(cache.keys, sequence, kv_head, key) : nullptr;
    return k == nullptr ? -std::numeric_limits<double>::infinity() : z_of(k, cache.head_dim);
  }

  // Solves the row over these keys, in key order; z: of each; value_of(key): its value's numbers, or null for
  // one of ones, where the row is NaN anyway.
  template <class ValueOf>
  void solve(std::span<const int64_t> keys, std::span<const double> z, const ValueOf& value_of,
             DecodeRows& rows) const {
    const auto place = static_cast<size_t>((sequence * rows.out.heads() + head) * rows.out.length() + query);
    std::vector<double> p(z.size());
    double* out = rows.out.row(sequence, head, query);
    const RowSolution<double> solution = solve_tau<double>(Solver::bisection, z, alpha);
    entmax_probabilities<double>(z, alpha, solution, p);
    const bool seen =
        std::ranges::any_of(z, [](double x) { return x != -std::numeric_limits<double>::infinity(); });
    rows.tau[place] = solution.tau();
    rows.maximum[place] = seen ? solution.max : -std::numeric_limits<double>::infinity();
    rows.support[place] = std::ranges::count_if(p, [](double x) { return x > 0; });
    for (size_t i = 0; i < keys.size(); ++i) {
      if (p[i] == 0) continue;  // such values may be NaN
      const double* v = value_of(keys[i]);
      for (int64_t c = 0; c < rows.out.dim(); ++c) out[c] += p[i] * (v == nullptr ? 1 : v[c]);
    }
  }
};

// Rows of zeros, once cache and inputs are checked.
template <class Cache>
DecodeRows empty_rows(const Cache& cache, const DecodeInputs& inputs) {
  const auto refuse = [](const std::string& what) { throw InvalidArgument("decode: " + what); };
  const auto& q = inputs.q;
  if (cache.kv_heads < 1 || q.heads() % cache.kv_heads != 0)
    refuse("q_heads must be a multiple of kv_heads (" + std::to_string(cache.kv_heads) + "), not " +
           std::to_string(q.heads()));
  if (q.dim() != cache.head_dim || q.batch() != cache.batch)
    refuse("q must be [batch, q_heads, q_len, head_dim] with the cache's batch and head_dim");
  for (const auto* values : {&inputs.alpha, &inputs.scale}) {
    if (values->size() != 1 && static_cast<int64_t>(values->size()) != q.heads())
      refuse("alpha and scale are one number each, or one per query head");
  }
  if (inputs.window < 0 || inputs.sinks < 0 || (inputs.window == 0 && inputs.sinks > 0))
    refuse("a window is of 0 or more keys (0: all), with 0 or more sinks beside it, not " +
           std::to_string(inputs.window) + " and " + std::to_string(inputs.sinks));
  for (const int32_t page : cache.table) {
    if (page >= cache.pages())
      refuse("page " + std::to_string(page) + " lies outside the pool of " + std::to_string(cache.pages()));
  }
  for (const int32_t length : cache.lengths) {
    if (length < 0 || length > cache.width * cache.page_size)
      refuse("a length must lie in 0 ... " + std::to_string(cache.width * cache.page_size) + ", not be " +
             std::to_string(length));
  }
  DecodeRows rows;
  const auto count = static_cast<size_t>(q.batch() * q.heads() * q.length());
  rows.out = Tensor<double>(q.batch(), q.heads(), q.length(), q.dim());
  rows.tau.resize(count);
  rows.maximum.resize(count);
  rows.support.resize(count);
  return rows;
}

}  // namespace splash::cpu_ref
