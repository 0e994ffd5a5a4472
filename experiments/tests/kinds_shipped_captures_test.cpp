// The shipped decoder as an input, and rows from it for a solver.

#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/attention/forward.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/shipped_captures.h"
#include "experiments/runner/definition.h"
#include "experiments/tests/kinds_helpers.h"

using namespace splash;
using namespace splash::experiments;
using namespace splash::experiments::tests;

namespace {

const Parameters kDecoder{{"input", std::string("smollm2")}};

TEST_CASE("the shipped decoder has grouped heads, its own scale and causal rows of all its keys") {
  const TensorFile& file = open_tensor_file("smollm2");
  CHECK(file.hdf5 == shipped_capture("smollm2"));
  CHECK(file.capture.layers == std::vector<int64_t>{0, 4, 9, 14, 24, 29});
  const Parameters p = parameters_of("workload", with(kDecoder, {{"layer", int64_t{9}}}));
  CHECK(get_flag(p, "causal"));
  CHECK(get_number(p, "scale") == 0.125);
  const auto head = load_inputs(p);
  CHECK(head->shape() == AttentionShape{.q_len = 512, .kv_len = 2048, .head_dim = 64});
  const auto other = load_inputs(with(p, {{"head", int64_t{2}}}));
  CHECK(head->k.matrix(0, 0) == other->k.matrix(0, 0));
  CHECK(head->q.matrix(0, 0) != other->q.matrix(0, 0));
  CHECK_THROWS_AS(parameters_of("workload", with(kDecoder, {{"layer", int64_t{1}}})), InvalidArgument);
  CHECK_THROWS_AS(shipped_capture("nothing"), ReportError);
}

TEST_CASE("the shipped decoder after conversion has its broad layer, with other queries") {
  const Parameters p = parameters_of("workload", {{"input", std::string("smollm2-converted")}});
  const auto head = load_inputs(p);
  CHECK(open_tensor_file("smollm2-converted").capture.layers == std::vector<int64_t>{0});
  CHECK(head->shape() == AttentionShape{.q_len = 384, .kv_len = 2048, .head_dim = 64});
  const auto before = load_inputs(parameters_of("workload", with(kDecoder, {{"layer", int64_t{0}}})));
  CHECK(head->q.matrix(0, 0) != before->q.matrix(0, 0).bottomRows(384));
}

TEST_CASE("the shipped decoder after conversion is a GPU's problem with its own alphas and factors") {
  const auto problem = [](bool of_file) {
    return parameters_of("gpu-attention", {{"input", std::string("smollm2-converted")},
                                           {"layer", int64_t{0}},
                                           {"normalizer", std::string("entmax")},
                                           {"alpha_of_file", of_file}});
  };
  const AttentionSpec spec = problem_spec(problem(true));
  CHECK(spec.normalizer.alpha ==
        std::vector<double>{1.4132568836212158, 1.4095686674118042, 1.4143409729003906});
  CHECK(spec.scale == 0.125);
  CHECK(spec.shape.q_heads == 3);
  CHECK_NOTHROW(spec.validate());
  const auto scaled = problem_inputs(problem(true)), whole = problem_inputs(problem(false));
  const float factors[] = {0.3287191390991211f, 0.3224264979362488f, 0.38694876432418823f};
  for (const int64_t head : {0, 1, 2})
    CHECK(scaled->q.row(0, head, 383)[63] ==
          factors[head] * static_cast<float>(round_to(Dtype::bf16, whole->q.row(0, head, 383)[63])));
  CHECK(scaled->k.matrix(0, 0) == whole->k.matrix(0, 0));
}

TEST_CASE("the checks of a converted model add up the layers that --set names") {
  Definition definition = read_definition(SPLASH_SOURCE_DIR "/experiments/flagship/entmax-converted.toml");
  REQUIRE(expand(definition, definition.full).size() == 6);  // layer 0, which the shipped capture holds
  override_parameter(definition, "layer=0,1,2");
  CHECK(case_count(definition.full) == 18);
  REQUIRE(definition.expectations.size() == 2);
  for (const Expectation& expected : definition.expectations) {
    REQUIRE(expected.over.has_value());
    for (const Measurement* measured : {&expected.measured, &*expected.over}) {
      CHECK(measured->statistic == Statistic::sum);
      CHECK(measured->held.empty());  // not left at layer 0
      CHECK_FALSE(measured->where.contains("layer"));
    }
    Filter theirs = expected.measured.where, ours = expected.over->where;
    theirs.erase("implementation");
    ours.erase("implementation");
    CHECK(theirs == ours);
  }
}

TEST_CASE("a solver's rows are a head's last queries over what they see") {
  const Parameters changes =
      with(kDecoder, {{"rows", int64_t{3}}, {"layer", int64_t{4}}, {"dtype", std::string("float64")}});
  const Parameters p = parameters_of("entmax-solver", changes);
  CHECK(get_integer(p, "n") == 2048);
  const CaseResult found = find_kind("entmax-solver").evaluate(p);
  const Parameters same = parameters_of("attention-accuracy", with(kDecoder, {{"layer", int64_t{4}}}));
  AttentionSpec spec = input_spec(same, *load_inputs(same));
  spec.normalizer = {NormalizerKind::entmax, {1.5}};
  const auto& head = *load_inputs(same);
  const auto forward = cpu_ref::attention_forward<double>(spec, head.q, head.k, head.v);
  double support = 0;
  for (int64_t r = 509; r < 512; ++r) support += static_cast<double>(forward.support[r]);
  CHECK(found.numbers.at("support_mean") == doctest::Approx(support / 3));
  CHECK(found.numbers.at("residual_max") < 1e-12);
  const Parameters used = find_kind("entmax-solver").used(p);
  CHECK(!used.contains("workload"));
  CHECK(!find_kind("entmax-solver").used(parameters_of("entmax-solver", {})).contains("input"));
  CHECK_THROWS_WITH_AS(parameters_of("entmax-solver", with(kDecoder, {{"rows", int64_t{513}}})),
                       "rows is 513; smollm2 gives 512 queries a head", InvalidArgument);
  CHECK_THROWS_WITH_AS(parameters_of("entmax-solver", with(kDecoder, {{"n", int64_t{64}}})),
                       "n is 64; rows of a file have its length, 2048", InvalidArgument);
}

}  // namespace
