// Source 000's power approximation, max(s, 0)^alpha, against exact entmax of the same alpha and against
// softmax.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "analysis/error_metrics.h"
#include "experiments/kinds/support/reference.h"

namespace splash::experiments {
namespace {

using cpu_ref::SparseProbabilities;

struct Overlap {
  double distance = 0;        // total variation distance
  double support_recall = 0;  // share of the exact support that has a weight here
};

// Both rows are sparse with rising columns. The distance is 1 - sum min(p, q), which for two distributions is
// half of sum |p - q|. A zero row of the approximation has distance 1.
Overlap compare_rows(const SparseProbabilities<double>& approximate, const SparseProbabilities<double>& exact,
                     int64_t row) {
  int64_t a = approximate.row_offsets[row], e = exact.row_offsets[row];
  const int64_t a_end = approximate.row_offsets[row + 1], e_begin = e, e_end = exact.row_offsets[row + 1];
  double common = 0, found = 0;
  while (a < a_end && e < e_end) {
    if (approximate.columns[a] < exact.columns[e]) {
      ++a;
    } else if (approximate.columns[a] > exact.columns[e]) {
      ++e;
    } else {
      common += std::min(approximate.values[a++], exact.values[e++]);
      found += 1;
    }
  }
  return {1 - common, e_end > e_begin ? found / static_cast<double>(e_end - e_begin) : 1};
}

class PowerApproximation : public HeadKind {
 public:
  std::string name() const override { return "power-approximation"; }
  std::string summary() const override {
    return "max(s, 0)^alpha in the place of entmax: where it holds, where it fails";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    auto list = input_parameters();
    list.push_back({"alpha", number, 1.5, "1", "entmax's alpha, and the approximation's exponent", {}});
    list.push_back(
        {"normalized", flag, true, "1", "whether rows are divided by their sum (the source does not)", {}});
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    std::vector<report::ColumnInfo> list;
    for (const std::string reference : {"entmax", "softmax"}) {
      const auto column = [&](const char* metric, const char* what, const char* formula) {
        list.push_back(
            {.name = metric + ("_vs_" + reference),
             .units = "1",
             .long_name = fmt::format("{} of the output against {}", what, reference),
             .formula = formula,
             .missing_reason = metric == std::string("cosine") ? "an output is zero throughout" : ""});
      };
      column("mse", "mean squared error", "mean (out - ref)^2");
      column("nmse", "normalised squared error", "|out - ref|^2 / |ref|^2");
      column("max_error", "largest error", "max |out - ref|");
      column("cosine", "cosine similarity", "<out, ref> / (|out| |ref|), whole output");
    }
    list.push_back({.name = "zero_rows",
                    .units = "1",
                    .long_name = "share of rows whose scores are all <= 0",
                    .formula = "rows without weight / rows"});
    list.push_back({.name = "support_mean",
                    .units = "1",
                    .long_name = "keys with weight, mean over rows",
                    .formula = "keys with s > 0"});
    list.push_back({.name = "entmax_support_mean",
                    .units = "1",
                    .long_name = "exact entmax support, mean over rows",
                    .formula = "keys with p > 0"});
    list.push_back({.name = "support_recall",
                    .units = "1",
                    .long_name = "share of the exact support that has weight, mean over rows",
                    .formula = "|weighted and exact support| / |exact support|"});
    list.push_back(
        {.name = "total_variation",
         .units = "1",
         .long_name = "distance between the two distributions, mean over rows; a zero row counts as 1",
         .formula = "1 - sum min(p, p exact)",
         .missing_reason = "weights that are not normalised are no distribution"});
    return list;
  }

  void check(const Parameters& p) const override {
    HeadKind::check(p);
    Normalizer{NormalizerKind::entmax, {get_number(p, "alpha")}}.validate({});
  }

  CaseResult evaluate(const Parameters& p) const override {
    const double alpha = get_number(p, "alpha");
    const bool normalized = get_flag(p, "normalized");
    const auto inputs = load_inputs(p);
    const auto exact = exact_entmax(p);
    AttentionSpec spec = input_spec(p, *inputs);
    spec.normalizer = {normalized ? NormalizerKind::power : NormalizerKind::power_unnormalized, {alpha}};
    const auto power =
        cpu_ref::attention_forward<double>(spec, inputs->q, inputs->k, inputs->v, exact_options(alpha));

    CaseResult result;
    const auto compare = [&](const std::string& reference, const Tensor<double>& out) {
      const auto errors = analysis::compare_arrays(values_of(power.out), values_of(out));
      result.numbers["mse_vs_" + reference] = errors.mse;
      result.numbers["nmse_vs_" + reference] = errors.nmse;
      result.numbers["max_error_vs_" + reference] = errors.max_error;
      const double direction = cosine(values_of(power.out), values_of(out));
      if (std::isfinite(direction)) result.numbers["cosine_vs_" + reference] = direction;
    };
    compare("entmax", exact->out);
    compare("softmax", dense_softmax(p)->out);

    const int64_t rows = spec.shape.rows();
    double zero = 0, support = 0, exact_support = 0, recall = 0, distance = 0;
    for (int64_t r = 0; r < rows; ++r) {
      zero += power.support[r] == 0 ? 1 : 0;
      support += static_cast<double>(power.support[r]);
      exact_support += static_cast<double>(exact->support[r]);
      const Overlap overlap = compare_rows(*power.probabilities, *exact->probabilities, r);
      recall += overlap.support_recall;
      distance += overlap.distance;
    }
    const auto count = static_cast<double>(rows);
    result.numbers["zero_rows"] = zero / count;
    result.numbers["support_mean"] = support / count;
    result.numbers["entmax_support_mean"] = exact_support / count;
    result.numbers["support_recall"] = recall / count;
    if (normalized) result.numbers["total_variation"] = distance / count;
    return result;
  }
};

const PowerApproximation kPowerApproximation;
const KindRegistration kPowerApproximationRegistration(kPowerApproximation);

}  // namespace
}  // namespace splash::experiments
