#pragma once
// The rows of entmax_row_scan.h as attention problems. Scores are the keys' first elements. There is one
// query head per alpha, and all share one key head.

#include <array>
#include <vector>

#include "gpu/tests/entmax_portable_case.h"
#include "gpu/tests/entmax_row_scan.h"

namespace splash::gpu::testing {

// Exact in float, as the device's alphas are.
inline constexpr std::array kAttentionAlphas{1.01F, 1.05F, 1.2F, 1.5F, 1.9F, 2.0F};

// The first element of every value is 1, so the output's first element is sum p.
inline PortableCase scan_case(Pattern pattern, int64_t n, Dtype dtype) {
  PortableCase c{.name = "pattern " + std::to_string(static_cast<int>(pattern)), .dtype = dtype};
  c.spec.shape = {1, std::size(kAttentionAlphas), 1, 2, n, 8};
  c.spec.normalizer.alpha.assign(kAttentionAlphas.begin(), kAttentionAlphas.end());
  c.spec.scale = 1;
  c.inputs = make_inputs<double>({.seed = 3}, c.spec.shape);
  auto& [q, k, v] = c.inputs;
  const std::vector<double> scores = scores_of(pattern, n, 7);
  for (int64_t i = 0; i < q.size(); ++i) q.data()[i] = i % 8 == 0 ? 1 : 0;
  for (int64_t i = 0; i < k.size(); ++i) k.data()[i] = i % 8 == 0 ? scores[static_cast<size_t>(i / 8)] : 0;
  for (int64_t i = 0; i < v.size(); i += 8) v.data()[i] = 1;
  round_inputs(c.inputs, dtype);
  return c;
}

// Checks, for each row, the sum of p in the store, p itself, and the output. left_out: rows that are not
// stored. With 16-bit elements three errors add: tau itself is a float32 (with n keys just above it, each is
// off by its rounding), logarithms are the hardware's, with an error of 2^-22, and the dense path rounds
// weights as it rounds values.
inline void check_scan(const PortableCase& c, const Tensor<double>& out, const RowResults& rows,
                       const std::vector<char>& left_out = {}) {
  CAPTURE(c.name);
  CAPTURE(to_string(c.dtype));
  const AttentionShape& s = c.spec.shape;
  CAPTURE(s.kv_len);
  std::vector<double> scores(static_cast<size_t>(s.kv_len));
  for (int64_t j = 0; j < s.kv_len; ++j) scores[static_cast<size_t>(j)] = c.inputs.k.row(0, 0, j)[0];
  for (int64_t row = 0; row < s.rows(); ++row) {
    if (!left_out.empty() && left_out[static_cast<size_t>(row)] != 0) continue;
    const double alpha = c.spec.normalizer.alpha[static_cast<size_t>(row / s.q_len)];
    CAPTURE(alpha);
    std::vector<double> p(scores.size(), 0.0), expected(8, 0.0);
    double sum = 0;
    for (int64_t i = rows.offsets[row]; i < rows.offsets[row] + rows.counts[row]; ++i)
      sum += p[static_cast<size_t>(rows.columns[i])] =
          std::pow(static_cast<double>(rows.excess[i]), 1 / (alpha - 1));
    const bool whole = c.dtype == Dtype::f32;
    const double roundoff = whole ? 0 : 2 * unit_roundoff(c.dtype), n = static_cast<double>(s.kv_len);
    CHECK(std::abs(sum - 1) <=
          (whole ? 1e-5 : 1e-5 * std::max(1.0, 0.025 / (alpha - 1)) + 6e-8 * std::min(n, 3072.0)));
    for (double& of_key : p) of_key /= sum;
    const RowErrors errors = errors_of_row(scores, p, alpha);
    CHECK(errors.p <= (whole ? 4e-6 : 4e-6 + 3e-8 * std::min(n, 3072.0)));
    CHECK(errors.support <= 1e-6);
    for (int64_t j = 0; j < s.kv_len; ++j) {
      for (size_t d = 0; d < 8; ++d) expected[d] += p[static_cast<size_t>(j)] * c.inputs.v.row(0, 0, j)[d];
    }
    const double* const of_row = out.data() + row * 8;
    double error = 0;
    for (size_t d = 0; d < 8; ++d)
      error = std::max(error, std::abs(of_row[d] - expected[d]) / (1 + std::abs(expected[d])));
    CHECK(error <= 1e-5 + roundoff);
    CHECK(std::abs(of_row[0] - 1) <= 1e-5 + roundoff);
  }
}

}  // namespace splash::gpu::testing
