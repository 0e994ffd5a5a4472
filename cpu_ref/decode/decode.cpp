#include "cpu_ref/decode/decode.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "cpu_ref/decode/row.h"

namespace splash::cpu_ref {

DecodeRows empty_rows(const PagedCache& cache, const DecodeInputs& inputs) {
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

void DecodeRow::solve(const PagedCache& cache, std::span<const int64_t> keys, std::span<const double> z,
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
    const double* v = cache.at(cache.values, sequence, kv_head, keys[i]);
    for (int64_t c = 0; c < cache.head_dim; ++c) out[c] += p[i] * (v == nullptr ? 1 : v[c]);
  }
}

DecodeRows decode(const PagedCache& cache, const DecodeInputs& inputs) {
  DecodeRows rows = empty_rows(cache, inputs);
  const auto& q = inputs.q;
  for (int64_t b = 0; b < q.batch(); ++b) {
    for (int64_t h = 0; h < q.heads(); ++h) {
      for (int64_t i = 0; i < q.length(); ++i) {
        const DecodeRow row(cache, inputs, b, h, i);
        std::vector<int64_t> keys;
        std::vector<double> z;
        for (int64_t key = 0; key < row.end; ++key) {
          keys.push_back(key);
          z.push_back(row.z(cache, key));
        }
        row.solve(cache, keys, z, rows);
      }
    }
  }
  return rows;
}

}  // namespace splash::cpu_ref
