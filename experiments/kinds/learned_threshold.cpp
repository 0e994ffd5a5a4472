// Source 004's learned thresholds: a linear predictor of each query's tau, trained on one part of a captured
// head and judged on another.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "analysis/error_metrics.h"
#include "core/error.h"
#include "core/normalizer.h"
#include "cpu_ref/attention/row.h"
#include "cpu_ref/attention/threshold_predictor.h"
#include "experiments/kinds/support/reference.h"
#include "experiments/kinds/support/threshold_training.h"
#include "experiments/kinds/support/threshold_use.h"

namespace splash::experiments {
namespace {

using cpu_ref::PredictorMode;
using cpu_ref::ThresholdPredictor;

// Parameters of the head to judge on, which comes from another text or from another call of a file.
Parameters judged_of(Parameters p) {
  if (is_of_file(p)) {
    const int64_t call = get_integer(p, "eval_call");
    return of_other_call(std::move(p), call);
  }
  p["text"] = get_text(p, "eval_text");
  return p;
}

bool same_inputs(const Parameters& p) {
  return is_of_file(p) ? get_integer(p, "call") == get_integer(p, "eval_call")
                       : get_text(p, "text") == get_text(p, "eval_text");
}

class LearnedThreshold : public HeadKind {
 public:
  std::string name() const override { return "learned-threshold"; }
  std::string summary() const override {
    return "a threshold predicted from the query: error, Newton steps saved, direct use";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    auto list = input_parameters();
    list.push_back({"eval_text",
                    text,
                    std::string("gfdl-1.3"),
                    "",
                    "captured text to judge on; the same as `text`: train on even rows, judge on odd ones",
                    {"gpl-3", "gfdl-1.3"}});
    list.push_back({"eval_call",
                    integer,
                    int64_t{0},
                    "1",
                    "call of a file to judge on; the same as `call`: train on even rows, judge on odd ones",
                    {}});
    list.push_back({"alpha", number, 1.5, "1", "entmax's alpha, at most 2", {}});
    list.push_back({"steps", integer, int64_t{400}, "1", "Adam steps, all training rows in each", {}});
    list.push_back({"learning_rate", number, 0.02, "1", "Adam's learning rate", {}});
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    const auto column = [](const char* name, const char* what, const char* formula,
                           const char* dimension = "") {
      return report::ColumnInfo{
          .name = name, .units = "1", .long_name = what, .formula = formula, .dimension = dimension};
    };
    return {
        column("loss_before", "loss on the judged rows before training",
               "mean (tau_hat - tau)^2 with w = 0, b = 0"),
        column("loss_constant", "loss on the judged rows of the best constant",
               "mean (c - tau + m)^2, c the training rows' mean of tau - m"),
        column("loss_train", "loss on the training rows after training", "mean (tau_hat - tau)^2"),
        column("loss_after", "loss on the judged rows after training", "mean (tau_hat - tau)^2"),
        column("loss_ratio", "what training leaves of the loss on the judged rows",
               "loss_after / loss_before"),
        column("gain_over_constant", "loss of the predictor over that of a constant",
               "loss_after / loss_constant"),
        column("tau_error_quantile", "error of the predicted threshold on the judged rows, in units of z",
               "|tau_hat - tau|: quantiles 0, 0.05, 0.25, 0.5, 0.75, 0.95 and 1", "quantile"),
        column("tau_error_median", "median error of the predicted threshold", "median |tau_hat - tau|"),
        column("iterations_cold", "Newton steps from the left end of the bracket, mean", "judged rows"),
        column("iterations_warm", "Newton steps from the predicted threshold, mean", "judged rows"),
        column("mse_direct", "error of attention with the predicted threshold against exact entmax",
               "mean (out - ref)^2 over the judged rows, p = [z - tau_hat]_+^(1/(alpha-1)) renormalised"),
        column("nmse_direct", "normalised error of attention with the predicted threshold",
               "|out - ref|^2 / |ref|^2 over the judged rows"),
        column("listed_cold", "pairs a row that screened attention lists, without predictions",
               "pairs above the row's certified bound when they are looked at"),
        column(
            "listed_warm", "pairs a row that it lists where tau_hat may drop keys",
            "as listed_cold, above the larger of the bound and tau_hat, which is lowered until it lies above "
            "tau in 5 % of the training rows; rows done twice count twice"),
        column("listed_perfect", "pairs a row that it lists where tau is known from the start",
               "as listed_warm with tau_hat = tau: what no predictor undercuts"),
        column("misled_rows", "share of the rows whose tau_hat lay above tau: they are done again",
               "f(tau_hat) < 0 on the exact scores"),
        column("blocks_skipped", "share of 64 x 64 blocks skipped by the predicted threshold",
               "visible blocks without a score above their rows' tau_hat / visible blocks"),
        column("blocks_empty", "share of 64 x 64 blocks that hold no support",
               "visible blocks without a score above their rows' tau / visible blocks"),
        column("nmse_skipping", "normalised error of attention without the blocks skipped",
               "|out - ref|^2 / |ref|^2 over the judged rows, entmax solved over the keys that are left"),
    };
  }

  void check(const Parameters& p) const override {
    if (get_text(p, "input") != "minilm" && !is_of_file(p))
      throw InvalidArgument(R"(learned-threshold works on captures: input = "minilm", "smollm2", or a file)");
    HeadKind::check(p);
    HeadKind::check(judged_of(p));
    const double alpha = get_number(p, "alpha");
    require_entmax_alpha(alpha);
    if (alpha > 2) {
      throw InvalidArgument(fmt::format("alpha is {}; learned thresholds take those up to 2", alpha));
    }
    if (get_integer(p, "steps") < 1) throw InvalidArgument("steps must be at least 1");
    if (!(get_number(p, "learning_rate") > 0)) throw InvalidArgument("learning_rate must be above 0");
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = HeadKind::used(p);
    kept.erase(is_of_file(p) ? "eval_text" : "eval_call");
    return kept;
  }

  std::string input_hash(const Parameters& p) const override {
    return HeadKind::input_hash(p) + " " + HeadKind::input_hash(judged_of(p));
  }

  CaseResult evaluate(const Parameters& p) const override {
    const Parameters judged = judged_of(p);
    auto train = threshold_samples(p);
    auto test = threshold_samples(judged);
    const auto rows = test;
    if (same_inputs(p)) {
      std::erase_if(train, [](const ThresholdSample& s) { return s.row % 2 == 1; });
      std::erase_if(test, [](const ThresholdSample& s) { return s.row % 2 == 0; });
    }
    const auto inputs = load_inputs(judged);
    const ThresholdPredictor untrained(1, inputs->q.dim());
    const ThresholdPredictor trained = train_threshold(
        train, untrained, static_cast<int>(get_integer(p, "steps")), get_number(p, "learning_rate"));
    CaseResult result;
    double constant = 0, loss_constant = 0;
    for (const auto& sample : train) constant += sample.offset / static_cast<double>(train.size());
    for (const auto& sample : test)
      loss_constant += std::pow(constant - sample.offset, 2) / static_cast<double>(test.size());
    result.numbers["loss_before"] = threshold_loss(test, untrained);
    result.numbers["loss_constant"] = loss_constant;
    result.numbers["loss_train"] = threshold_loss(train, trained);
    result.numbers["loss_after"] = threshold_loss(test, trained);
    result.numbers["loss_ratio"] = result.numbers["loss_after"] / result.numbers["loss_before"];
    result.numbers["gain_over_constant"] = result.numbers["loss_after"] / loss_constant;
    judge(judged, *inputs, trained, train, rows, test, result);
    return result;
  }

 private:
  static void judge(const Parameters& p, const AttentionInputs<double>& inputs,
                    const ThresholdPredictor& trained, const std::vector<ThresholdSample>& train,
                    const std::vector<ThresholdSample>& rows, const std::vector<ThresholdSample>& test,
                    CaseResult& result) {
    AttentionSpec spec = input_spec(p, inputs);
    const double alpha = get_number(p, "alpha");
    spec.normalizer = {NormalizerKind::entmax, {alpha}};
    const auto options = exact_options(alpha);
    const auto run = [&](PredictorMode mode) {
      return cpu_ref::predicted_forward<double>(spec, trained, mode, inputs.q, inputs.k, inputs.v, options);
    };
    const auto warm = run(PredictorMode::warm_start);
    const auto direct = run(PredictorMode::direct);
    const auto exact = exact_entmax(p);

    std::vector<double> errors, out, reference;
    double warm_steps = 0, cold_steps = 0;
    for (const ThresholdSample& sample : test) {
      errors.push_back(std::abs(warm.tau_hat[sample.row] - exact->tau[sample.row]));
      warm_steps += warm.iterations[sample.row];
      cold_steps += sample.cold_iterations;
      const double* direct_row = direct.attention.out.row(0, 0, sample.row);
      const double* exact_row = exact->out.row(0, 0, sample.row);
      out.insert(out.end(), direct_row, direct_row + spec.shape.head_dim);
      reference.insert(reference.end(), exact_row, exact_row + spec.shape.head_dim);
    }
    const auto count = static_cast<double>(test.size());
    result.vectors["tau_error_quantile"] = quantiles(errors);
    result.numbers["tau_error_median"] = result.vectors["tau_error_quantile"][3];
    result.numbers["iterations_warm"] = warm_steps / count;
    result.numbers["iterations_cold"] = cold_steps / count;
    const auto metrics = analysis::compare_arrays(out, reference);
    result.numbers["mse_direct"] = metrics.mse;
    result.numbers["nmse_direct"] = metrics.nmse;

    const ListedPairs listed = listed_pairs(spec, inputs, trained, train, rows);
    result.numbers["listed_cold"] = listed.cold;
    result.numbers["listed_warm"] = listed.warm;
    result.numbers["listed_perfect"] = listed.perfect;
    result.numbers["misled_rows"] = listed.misled;
    const SkippedBlocks skipped = skipped_blocks(spec, inputs, trained, rows, test, exact->out);
    result.numbers["blocks_skipped"] = skipped.share;
    result.numbers["blocks_empty"] = skipped.empty;
    result.numbers["nmse_skipping"] = skipped.nmse;
  }
};

const LearnedThreshold kLearnedThreshold;
const KindRegistration kLearnedThresholdRegistration(kLearnedThreshold);

}  // namespace
}  // namespace splash::experiments
