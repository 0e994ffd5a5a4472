#pragma once
// Exact results for comparison, cached across the cases of a sweep, and summaries of results.

#include <memory>
#include <span>
#include <vector>

#include "cpu_ref/attention/forward.h"
#include "experiments/kinds/support/inputs.h"
#include "report/report.h"

namespace splash::experiments {

// Newton for 1 < alpha <= 2, Halley-bisection above; both reach the bisection oracle's tau
// (kinds_reference_test).
cpu_ref::Solver exact_solver(double alpha);

// Options of every double forward in this file: the exact solver, with the probabilities kept.
cpu_ref::ForwardOptions exact_options(double alpha);

// Exact entmax attention over all visible keys, with its probabilities; `alpha` is a parameter of the case.
std::shared_ptr<const cpu_ref::ForwardResult<double>> exact_entmax(const Parameters& parameters);

// Dense softmax attention over the same keys; outputs only.
std::shared_ptr<const cpu_ref::ForwardResult<double>> dense_softmax(const Parameters& parameters);

inline std::span<const double> values_of(const Tensor<double>& tensor) {
  return {tensor.data(), static_cast<size_t>(tensor.size())};
}

// <a, b> / (|a| |b|); NaN if one of them is zero.
double cosine(std::span<const double> a, std::span<const double> b);

// The levels of every `quantile` dimension in these reports.
inline constexpr double kQuantileLevels[] = {0, 0.05, 0.25, 0.5, 0.75, 0.95, 1};
inline constexpr const char* kQuantileText = "quantiles 0, 0.05, 0.25, 0.5, 0.75, 0.95 and 1";
std::vector<double> quantiles(std::vector<double> samples);

// Columns of sparsity and support that several kinds share.
std::vector<report::ColumnInfo> sparsity_columns();
void fill_sparsity(const AttentionSpec& spec, std::span<const int64_t> support,
                   const cpu_ref::BlockMap& blocks_64, CaseResult& result);

// Tiles that are entirely 0 / visible tiles.
double block_sparsity(const cpu_ref::BlockMap& map);

// The map with tiles of twice the side. A tile is active if one of its four parts is.
cpu_ref::BlockMap coarsen(const cpu_ref::BlockMap& map);

}  // namespace splash::experiments
