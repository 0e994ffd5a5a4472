// The reference that errors are measured against, the solver study, gradients and learned thresholds.

#include <doctest/doctest.h>

#include "analysis/error_metrics.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/threshold_predictor.h"
#include "experiments/kinds/support/reference.h"
#include "experiments/kinds/support/threshold_training.h"
#include "experiments/tests/kinds_helpers.h"

namespace splash::experiments::tests {

using doctest::Approx;

TEST_CASE("the fast exact solvers give the bisection oracle's attention") {
  for (const double alpha : {1.05, 1.5, 2.0, 3.0}) {
    for (const Parameters& head :
         {small_head(), Parameters{{"layer", int64_t{3}}, {"text", std::string("gfdl-1.3")}}}) {
      const Parameters p = parameters_of("attention-accuracy", with(head, {{"alpha", alpha}}));
      const auto inputs = load_inputs(p);
      AttentionSpec spec = input_spec(p, *inputs);
      spec.normalizer = {NormalizerKind::entmax, {alpha}};
      const auto oracle = cpu_ref::attention_forward<double>(spec, inputs->q, inputs->k, inputs->v,
                                                             {.solver = cpu_ref::Solver::bisection});
      const auto fast = exact_entmax(p);
      CHECK(analysis::compare_arrays(values_of(fast->out), values_of(oracle.out)).max_error < 1e-12);
      CHECK(fast->support == oracle.support);
    }
  }
}

TEST_CASE("references are kept, and told apart by mask and alpha") {
  const Parameters p = parameters_of("attention-accuracy", small_head());
  CHECK(exact_entmax(p) == exact_entmax(p));
  CHECK(exact_entmax(p) != exact_entmax(with(p, {{"causal", true}})));
  CHECK(exact_entmax(p) != exact_entmax(with(p, {{"alpha", 1.7}})));
  CHECK(dense_softmax(p) == dense_softmax(with(p, {{"alpha", 1.7}})));
}

TEST_CASE("a coarser block map is active where one of its parts is") {
  using cpu_ref::BlockMap;
  BlockMap map;
  map.q_blocks = 2;
  map.k_blocks = 3;
  map.state = {BlockMap::active,   BlockMap::hidden,   BlockMap::hidden,
               BlockMap::inactive, BlockMap::inactive, BlockMap::inactive};
  const BlockMap coarse = coarsen(map);
  CHECK(coarse.block == 128);
  CHECK(coarse.state == std::vector<uint8_t>{BlockMap::active, BlockMap::inactive});
}

TEST_CASE("entmax-solver reports residual and error of the threshold") {
  const Parameters row{
      {"n", int64_t{4096}}, {"rows", int64_t{3}}, {"samples", int64_t{2}}, {"dtype", std::string("float64")}};
  for (const std::string solver : {"bisection", "sorting", "newton", "halley_bisection", "histogram"}) {
    CAPTURE(solver);
    const auto result = run_kind("entmax-solver", with(row, {{"solver", solver}}));
    CHECK(result.numbers.at("residual_max") < 1e-12);
    CHECK(result.numbers.at("tau_error_max") < 1e-13);
    CHECK(result.vectors.at("time").size() == 2);
    CHECK(result.numbers.at("memory_bytes") == (solver == "sorting"     ? 4096 * 8
                                                : solver == "histogram" ? 65 * 8
                                                                        : 0));
  }
  // A solver that is stopped early has a residual that says so.
  const auto stopped = run_kind(
      "entmax-solver", with(row, {{"solver", std::string("newton")}, {"max_iterations", int64_t{1}}}));
  CHECK(stopped.numbers.at("iterations_max") == 1);
  CHECK(stopped.numbers.at("residual_max") > 1);
  const auto tolerant =
      run_kind("entmax-solver", with(row, {{"solver", std::string("bisection")}, {"tolerance", 1e-3}}));
  CHECK(tolerant.numbers.at("residual_max") <= 1e-3 + 1e-12);
}

TEST_CASE("gradient: with nothing dropped, straight-through gradients are exact") {
  const auto all = run_kind("gradient", with(small_head(), {{"k_keep", int64_t{40}}}));
  for (const auto& entry : all.numbers) {
    const std::string& name = entry.first;
    CAPTURE(name);
    CHECK(entry.second == Approx(name.starts_with("nmse") ? 0.0 : 1.0).epsilon(1e-9));
  }
  const auto few = run_kind("gradient", with(small_head(), {{"k_keep", int64_t{1}}}));
  CHECK(few.numbers.at("nmse_dv_vs_selected") == 0);  // dV belongs to the forward that was run
  CHECK(few.numbers.at("nmse_dq_vs_full") < 1e-20);   // dQ is that of entmax over all keys
  CHECK(few.numbers.at("nmse_dv_vs_full") > 1e-3);
}

TEST_CASE("the training gradient is that of cpu_ref's predictor") {
  const Parameters p =
      parameters_of("learned-threshold", {{"text", std::string("gfdl-1.3")}, {"layer", int64_t{1}}});
  const auto inputs = load_inputs(p);
  AttentionSpec spec = input_spec(p, *inputs);
  spec.normalizer = {NormalizerKind::entmax, {1.5}};
  cpu_ref::ThresholdPredictor predictor(1, 32);
  for (size_t c = 0; c < 32; ++c) predictor.w[c] = 0.01 * static_cast<double>(c) - 0.1;
  predictor.b[0] = 0.3;
  const Tensor<double> dout(1, 1, spec.shape.q_len, 32);
  const auto theirs = cpu_ref::predicted_backward<double>(spec, predictor, cpu_ref::PredictorMode::warm_start,
                                                          inputs->q, inputs->k, inputs->v, dout);
  const auto samples = threshold_samples(p);
  const auto ours = threshold_gradient(samples, predictor);
  for (size_t c = 0; c < 32; ++c) CHECK(ours.dw[c] == Approx(theirs.dw[c]).epsilon(1e-9));
  CHECK(ours.db == Approx(theirs.db[0]).epsilon(1e-9));
  const auto forward = cpu_ref::predicted_forward<double>(spec, predictor, cpu_ref::PredictorMode::direct,
                                                          inputs->q, inputs->k, inputs->v);
  CHECK(threshold_loss(samples, predictor) == Approx(forward.loss).epsilon(1e-9));
}

TEST_CASE("learned-threshold: training helps on rows that it has not seen") {
  // A head with long supports, on which Newton from the left needs many steps.
  const auto result =
      run_kind("learned-threshold",
               {{"layer", int64_t{0}}, {"head", int64_t{11}}, {"eval_text", std::string("gpl-3")}});
  CHECK(result.numbers.at("loss_after") < result.numbers.at("loss_before"));
  CHECK(result.numbers.at("loss_train") <= result.numbers.at("loss_before"));
  CHECK(result.numbers.at("iterations_warm") < result.numbers.at("iterations_cold"));
  const auto& errors = result.vectors.at("tau_error_quantile");
  REQUIRE(errors.size() == 7);
  CHECK(errors[3] == result.numbers.at("tau_error_median"));
  CHECK(std::ranges::is_sorted(errors));
  // Knowing tau saves pairs. Only blocks without support can be skipped without error, so skipping more
  // blocks than those costs accuracy.
  const auto number = [&](const char* name) { return result.numbers.at(name); };
  CHECK(number("listed_perfect") < number("listed_cold"));
  CHECK(number("misled_rows") > 0);
  CHECK(number("misled_rows") < 0.2);
  CHECK((number("blocks_skipped") <= number("blocks_empty") || number("nmse_skipping") > 0));
}

}  // namespace splash::experiments::tests
