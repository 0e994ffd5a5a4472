#pragma once
// Helpers that the tests of the kinds share.

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/kinds/support/inputs.h"
#include "experiments/runner/kind.h"
#include "experiments/runner/value.h"

namespace splash::experiments::tests {

// The given parameters, what their inputs say of others, and the kind's defaults; checked.
inline Parameters parameters_of(const std::string& kind, const Parameters& changes) {
  const Parameters parameters = completed(find_kind(kind), changes);
  for (const auto& [name, value] : changes)
    find_parameter(find_kind(kind), find_kind(kind).parameters(), name);
  find_kind(kind).check(parameters);
  return parameters;
}

inline CaseResult run_kind(const std::string& kind, const Parameters& changes) {
  return find_kind(kind).evaluate(parameters_of(kind, changes));
}

// A small synthetic head, without a mask.
inline Parameters small_head(int64_t length = 40) {
  return {{"input", std::string("gaussian")},
          {"length", length},
          {"head_dim", int64_t{8}},
          {"query_variance", 6.0}};
}

inline Parameters with(Parameters parameters, const Parameters& more) {
  for (const auto& [name, value] : more) parameters[name] = value;
  return parameters;
}

// s[i][j] = <q_i, k_j> / sqrt(d).
inline std::vector<std::vector<double>> score_rows_of(const AttentionInputs<double>& inputs) {
  std::vector<std::vector<double>> scores(inputs.q.length(), std::vector<double>(inputs.k.length()));
  for (int64_t i = 0; i < inputs.q.length(); ++i) {
    for (int64_t j = 0; j < inputs.k.length(); ++j) {
      for (int64_t d = 0; d < inputs.q.dim(); ++d)
        scores[i][j] += inputs.q.row(0, 0, i)[d] * inputs.k.row(0, 0, j)[d];
      scores[i][j] /= std::sqrt(static_cast<double>(inputs.q.dim()));
    }
  }
  return scores;
}

// out[i] = sum_j p[i][j] v_j, rows joined.
inline std::vector<double> outputs_of(const std::vector<std::vector<double>>& p, const Tensor<double>& v) {
  std::vector<double> out;
  for (const auto& row : p) {
    for (int64_t d = 0; d < v.dim(); ++d) {
      out.push_back(0);
      for (size_t j = 0; j < row.size(); ++j) out.back() += row[j] * v.row(0, 0, static_cast<int64_t>(j))[d];
    }
  }
  return out;
}

inline double mean_square(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

inline std::filesystem::path data_folder() {
  return std::filesystem::path(captures_path()).parent_path().parent_path();
}

}  // namespace splash::experiments::tests
