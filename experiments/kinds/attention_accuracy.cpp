// Measures how far attention over a selection of keys is from exact entmax over all keys, and from softmax.

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "analysis/error_metrics.h"
#include "core/error.h"
#include "core/parallel.h"
#include "cpu_ref/attention/row.h"
#include "experiments/kinds/support/reference.h"

namespace splash::experiments {
namespace {

using cpu_ref::SparseProbabilities;

SelectionKind scope_of(const Parameters& p) {
  const std::string& scope = get_text(p, "scope");
  if (scope == "row") return SelectionKind::top_k_row;
  return scope == "block" ? SelectionKind::top_k_block : SelectionKind::all;
}

struct Kept {
  double support = 0;  // share of the exact support that is kept
  double mass = 0;     // exact probability that is kept
};

// The shares that the selection keeps of one exact row. Probability rises with the score, so the k keys that
// a selection keeps hold the k largest probabilities. Keys off the support add nothing to either number.
Kept kept_of_row(const Selection& selection, const SparseProbabilities<double>& exact, int64_t row) {
  const int64_t begin = exact.row_offsets[row], end = exact.row_offsets[row + 1];
  if (begin == end) return {1, 1};  // nothing to keep
  Kept kept;
  std::vector<double> p;
  for (int64_t first = begin, last = begin; first < end; first = last) {
    const auto group = [&](int64_t i) {
      return selection.kind == SelectionKind::top_k_block ? exact.columns[i] / selection.block : 0;
    };
    while (last < end && group(last) == group(first)) ++last;
    p.assign(exact.values.begin() + first, exact.values.begin() + last);
    if (selection.kind != SelectionKind::all && static_cast<int64_t>(p.size()) > selection.k_keep) {
      std::nth_element(p.begin(), p.begin() + selection.k_keep, p.end(), std::greater());
      p.resize(selection.k_keep);
    }
    kept.support += static_cast<double>(p.size());
    kept.mass += std::accumulate(p.begin(), p.end(), 0.0);
  }
  kept.support /= static_cast<double>(end - begin);
  return kept;
}

// The mean over rows of value(row). It is summed in order, so it does not depend on the number of threads.
template <class Value>
double mean_over_rows(int64_t rows, const Value& value) {
  std::vector<double> values(rows);
  parallel_for(rows, 16, [&](int64_t r) { values[r] = value(r); });
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(rows);
}

// Among the k largest scores of a row, the share with a probability above 0; k = min(k_keep, visible keys).
double top_k_recall(const AttentionSpec& spec, const AttentionInputs<double>& inputs,
                    const SparseProbabilities<double>& result, int64_t r) {
  thread_local cpu_ref::Row<double> row;
  thread_local std::vector<int32_t> places, top;
  const auto at = cpu_ref::row_address(spec.shape, r);
  cpu_ref::RowScorer<double> score(spec, inputs.q, inputs.k);
  score(at, spec.mask.row(spec.shape, at.batch, at.q_head, at.query), row);
  const int64_t k = std::min(spec.selection.k_keep, row.size());
  places.resize(row.size());
  std::iota(places.begin(), places.end(), 0);
  std::nth_element(places.begin(), places.begin() + k, places.end(), [&](int32_t a, int32_t b) {
    return row.scores[a] != row.scores[b] ? row.scores[a] > row.scores[b] : a < b;
  });
  top.clear();
  for (int64_t i = 0; i < k; ++i) top.push_back(static_cast<int32_t>(row.keys[places[i]]));
  std::ranges::sort(top);
  return analysis::recall(
      {result.columns.data() + result.row_offsets[r], result.columns.data() + result.row_offsets[r + 1]},
      top);
}

std::shared_ptr<const cpu_ref::ForwardResult<double>> run_forward(const AttentionSpec& spec,
                                                                  const AttentionInputs<double>& inputs,
                                                                  double alpha) {
  return std::make_shared<const cpu_ref::ForwardResult<double>>(
      cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v, exact_options(alpha)));
}

class AttentionAccuracy : public HeadKind {
 public:
  std::string name() const override { return "attention-accuracy"; }
  std::string summary() const override {
    return "error of K_KEEP attention against exact entmax and softmax, with sparsity, support and recall";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    auto list = input_parameters();
    list.push_back({"alpha", number, 1.5, "1", "entmax's alpha", {}});
    list.push_back({"scope",
                    text,
                    std::string("row"),
                    "",
                    "keys kept: all, k_keep a row, or k_keep a key block",
                    {"all", "row", "block"}});
    list.push_back(
        {"k_keep", integer, int64_t{8}, "1", "keys kept; with scope all only the k of top_k_recall", {}});
    list.push_back({"block", integer, int64_t{64}, "1", "keys a block, for scope block", {}});
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    std::vector<report::ColumnInfo> list;
    for (const char* reference : {"entmax", "softmax"}) {
      const auto column = [&](const char* metric, const char* units, const char* what, const char* formula) {
        list.push_back(
            {.name = fmt::format("{}_vs_{}", metric, reference),
             .units = units,
             .long_name = fmt::format("{} of the output against {} over all visible keys", what,
                                      reference == std::string("entmax") ? "exact entmax" : "dense softmax"),
             .formula = formula});
      };
      column("mse", "1", "mean squared error", "mean (out - ref)^2");
      column("nmse", "1", "normalised squared error", "|out - ref|^2 / |ref|^2");
      column("max_error", "1", "largest error", "max |out - ref|");
    }
    for (auto& column : sparsity_columns()) list.push_back(std::move(column));
    list.push_back({.name = "support_recall",
                    .units = "1",
                    .long_name = "share of the exact entmax support that the selection keeps, mean over rows",
                    .formula = "|selected and exact support| / |exact support|"});
    list.push_back({.name = "top_k_recall",
                    .units = "1",
                    .long_name = "share of the k largest scores whose probability is not 0, mean over rows",
                    .formula = "|nonzero and top k| / k, k = min(k_keep, visible keys)"});
    list.push_back({.name = "mass_kept",
                    .units = "1",
                    .long_name = "exact entmax probability on the selected keys, mean over rows",
                    .formula = "sum of exact p over the selected keys"});
    return list;
  }

  void check(const Parameters& p) const override {
    HeadKind::check(p);
    const Selection selection{scope_of(p), get_integer(p, "k_keep"), get_integer(p, "block")};
    selection.validate({});
    Normalizer{NormalizerKind::entmax, {get_number(p, "alpha")}}.validate({});
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = HeadKind::used(p);
    if (scope_of(p) != SelectionKind::top_k_block) kept.erase("block");
    return kept;
  }

  CaseResult evaluate(const Parameters& p) const override {
    const double alpha = get_number(p, "alpha");
    const auto inputs = load_inputs(p);
    const auto exact = exact_entmax(p);
    AttentionSpec spec = input_spec(p, *inputs);
    spec.normalizer = {NormalizerKind::entmax, {alpha}};
    spec.selection = {scope_of(p), get_integer(p, "k_keep"), get_integer(p, "block")};
    // If the selection keeps all keys, the result is the reference itself.
    const auto selected =
        spec.selection.kind == SelectionKind::all ? exact : run_forward(spec, *inputs, alpha);

    CaseResult result;
    const auto compare = [&](const std::string& reference, const Tensor<double>& out) {
      const auto errors = analysis::compare_arrays(values_of(selected->out), values_of(out));
      result.numbers["mse_vs_" + reference] = errors.mse;
      result.numbers["nmse_vs_" + reference] = errors.nmse;
      result.numbers["max_error_vs_" + reference] = errors.max_error;
    };
    compare("entmax", exact->out);
    compare("softmax", dense_softmax(p)->out);
    fill_sparsity(spec, selected->support, selected->blocks, result);

    const auto mean = [&](const auto& value) { return mean_over_rows(spec.shape.rows(), value); };
    const auto kept = [&](int64_t row) { return kept_of_row(spec.selection, *exact->probabilities, row); };
    result.numbers["support_recall"] = mean([&](int64_t row) { return kept(row).support; });
    result.numbers["mass_kept"] = mean([&](int64_t row) { return kept(row).mass; });
    result.numbers["top_k_recall"] =
        mean([&](int64_t row) { return top_k_recall(spec, *inputs, *selected->probabilities, row); });
    return result;
  }
};

const AttentionAccuracy kAttentionAccuracy;
const KindRegistration kAttentionAccuracyRegistration(kAttentionAccuracy);

}  // namespace
}  // namespace splash::experiments
