// The kind gpu-attention, as far as it can be tested without a GPU.

#include <cstdlib>

#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/forward.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/gpu_support.h"
#include "experiments/kinds/support/inputs.h"
#include "experiments/kinds/support/torch_peers.h"
#include "experiments/runner/definition.h"
#include "experiments/runner/value.h"
#include "experiments/tests/kinds_helpers.h"
#include "gpu/engine/variant.h"

using namespace splash;
using namespace splash::experiments;
using namespace splash::experiments::tests;

namespace {

Parameters small_problem(const Parameters& changes) {
  return parameters_of("gpu-attention", with({{"q_heads", int64_t{4}},
                                              {"kv_heads", int64_t{2}},
                                              {"batch", int64_t{2}},
                                              {"q_len", int64_t{96}},
                                              {"kv_len", int64_t{96}},
                                              {"head_dim", int64_t{16}}},
                                             changes));
}

}  // namespace

TEST_CASE("gpu-attention refuses what does not fit together") {
  CHECK_THROWS_WITH_AS(
      small_problem({{"implementation", std::string("torch-fast")}}),
      "PyTorch backend 'fast' is unknown; there are: cudnn, flash, efficient, math, math-tf32, adasplash, "
      "adasplash2, splash",
      InvalidArgument);
  if (!gpu::all_variants()
           .empty())  // without CUDA no variant is known, and the run ends for want of a device
    CHECK_THROWS_AS(small_problem({{"implementation", std::string("wmma/99-none")}}), InvalidArgument);
  CHECK_THROWS_AS(small_problem({{"samples", int64_t{0}}}), InvalidArgument);
  CHECK_THROWS_AS(small_problem({{"kv_heads", int64_t{3}}}), InvalidArgument);
  CHECK_THROWS_AS(small_problem({{"share", 0.0}}), InvalidArgument);
  CHECK_THROWS_AS(small_problem({{"mask", std::string("positions")}, {"kv_len", int64_t{50}}}),
                  InvalidArgument);
  const Parameters documents{{"mask", std::string("documents")}, {"documents", std::string("2x48")}};
  CHECK_NOTHROW(small_problem(documents));
  CHECK_THROWS_WITH_AS(small_problem(with(documents, {{"kv_len", int64_t{50}}})),
                       "the mask documents needs as many queries as keys, not 96 and 50", InvalidArgument);
  CHECK_THROWS_WITH_AS(small_problem(with(documents, {{"documents", std::string("2x49")}})),
                       "documents are '2x49'; they must be lengths of at least 1 that sum to 96, written as "
                       "8x2048 or 4096+2x512",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(small_problem({{"method", std::string("graph")}, {"cache", std::string("cold")}}),
                       "a replayed graph has a warm cache; cold timing needs the method events",
                       InvalidArgument);
  const std::string both = "forward_backward";
  CHECK_NOTHROW(small_problem({{"method", std::string("graph")}, {"pass", both}}));
  CHECK(get_text(small_problem({}), "pass") == "forward");
  CHECK(get_text(small_problem({{"implementation", std::string("torch-adasplash2")}, {"pass", both}}),
                 "pass") == both);
}

TEST_CASE("documents are packed sequences, and a part of their problem alone") {
  const auto of_mask = [](const char* mask) {
    return small_problem({{"mask", std::string(mask)}, {"documents", std::string("40+2x28")}});
  };
  const Mask mask = problem_spec(of_mask("documents")).mask;
  CHECK(mask.causal);
  CHECK(mask.cu_seqlens_q == std::vector<int64_t>{0, 40, 68, 96});
  CHECK(mask.cu_seqlens_k == mask.cu_seqlens_q);
  CHECK(problem_spec(of_mask("causal")).mask.cu_seqlens_q.empty());
  CHECK(problem_key(of_mask("documents")).find(", documents 40+2x28, ") != std::string::npos);
  CHECK(problem_key(of_mask("causal")).find("documents") == std::string::npos);
}

TEST_CASE("captured heads are a problem of their own extents, layer by layer") {
  const Parameters p = parameters_of("gpu-attention", {{"input", std::string("gfdl-1.3")},
                                                       {"dtype", std::string("float16")},
                                                       {"batch", int64_t{6}},
                                                       {"q_heads", int64_t{12}},
                                                       {"kv_heads", int64_t{12}},
                                                       {"q_len", int64_t{128}},
                                                       {"kv_len", int64_t{128}},
                                                       {"head_dim", int64_t{32}}});
  const auto in = problem_inputs(p);
  const auto head = load_inputs(parameters_of("workload", {{"input", std::string("minilm")},
                                                           {"text", std::string("gfdl-1.3")},
                                                           {"layer", int64_t{4}},
                                                           {"head", int64_t{7}}}));
  CHECK(in->q.matrix(4, 7).cast<double>() == head->q.matrix(0, 0));
  CHECK(in->v.matrix(4, 7).cast<double>() == head->v.matrix(0, 0));
  CHECK(problem_key(p).starts_with("gfdl-1.3 " + captures_hash()));
  CHECK(problem_key(small_problem({})).starts_with("gaussian: batch 2, "));
  CHECK_THROWS_AS(parameters_of("gpu-attention", with(p, {{"q_len", int64_t{512}}})), InvalidArgument);
}

TEST_CASE("gpu-entmax-rows refuses what entmax of rows does not take") {
  const auto rows = [](const Parameters& changes) { return parameters_of("gpu-entmax-rows", changes); };
  CHECK(get_integer(rows({}), "n") == 8192);
  CHECK_THROWS_WITH_AS(rows({{"alpha", 1.0}}),
                       "alpha is 1; entmax takes 1.000001 to 64 (towards 1 it becomes softmax)",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(rows({{"n", int64_t{0}}}), "n is 0; it must be at least 1", InvalidArgument);
  CHECK_THROWS_AS(rows({{"samples", int64_t{0}}}), InvalidArgument);
  CHECK_THROWS_AS(rows({{"variance", -1.0}}), InvalidArgument);
}

TEST_CASE("a stored support's tiles are those of the oracle, whichever order its rows lie in") {
  const Parameters p = small_problem({{"q_len", int64_t{646}},  // the last tile has six rows
                                      {"kv_len", int64_t{646}},
                                      {"mask", std::string("causal")},
                                      {"normalizer", std::string("entmax")},
                                      {"query_variance", 400.0}});
  const AttentionSpec spec = problem_spec(p);
  const auto in = problem_inputs(p);
  const auto expected = cpu_ref::attention_forward<double>(
      spec, in->q.cast<double>(), in->k.cast<double>(), in->v.cast<double>(), {.keep_probabilities = true});
  const auto& sparse = expected.probabilities.value();
  std::vector<int64_t> offsets;
  std::vector<int32_t> counts, columns;
  for (int64_t r = spec.shape.rows() - 1; r >= 0; --r) {
    const auto begin = sparse.columns.begin() + sparse.row_offsets[r];
    const auto end = sparse.columns.begin() + sparse.row_offsets[r + 1];
    offsets.insert(offsets.begin(), static_cast<int64_t>(columns.size()));
    counts.insert(counts.begin(), static_cast<int32_t>(end - begin));
    columns.insert(columns.end(), std::make_reverse_iterator(end), std::make_reverse_iterator(begin));
  }
  const cpu_ref::BlockMap map = support_blocks(spec, offsets, counts, columns);
  CHECK(map.state == expected.blocks.state);
  CHECK(map.count(cpu_ref::BlockMap::inactive) > 0);
  CHECK(map.count(cpu_ref::BlockMap::active) > 0);
}

TEST_CASE("the passes are the two that there are") {
  Definition definition = parse_definition("title = 'T'\nkind = 'gpu-attention'\n", "t", "t.toml");
  CHECK_NOTHROW(override_parameter(definition, "pass=forward_backward"));
  CHECK_THROWS_AS(override_parameter(definition, "pass=backward"), InvalidArgument);
}

TEST_CASE("LADDER/* is every rung of this build") {
  const Kind& kind = find_kind("gpu-attention");
  int64_t rungs = 0;
  for (const gpu::Variant* variant : gpu::all_variants()) rungs += variant->ladder == "wmma" ? 1 : 0;
  CHECK(static_cast<int64_t>(kind.choices("implementation", std::string("wmma/*")).size()) == rungs);
  CHECK(kind.choices("implementation", std::string("torch-cudnn")) ==
        std::vector<Value>{std::string("torch-cudnn")});
  CHECK(kind.choices("dtype", std::string("wmma/*")).size() == 1);
}

TEST_CASE("the checked rows are the last ones of the last batch entry, for every mask and selection") {
  for (const char* mask : {"none", "causal", "window", "positions", "documents"}) {
    for (const char* selection : {"all", "top_k_block", "shared_keys"}) {
      CAPTURE(mask);
      CAPTURE(selection);
      const Parameters p = small_problem({{"mask", std::string(mask)},
                                          {"window", int64_t{50}},
                                          {"documents", std::string("50+7+39")},
                                          {"selection", std::string(selection)},
                                          {"normalizer", std::string("entmax")},
                                          {"k_keep", int64_t{3}},
                                          {"block", int64_t{32}},
                                          {"share", 0.3}});
      const AttentionSpec spec = problem_spec(p);
      spec.validate();
      const auto inputs = problem_inputs(p)->cast<double>();
      const auto whole = cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v);
      const CheckedRows checked = checked_rows(spec, 40);
      CHECK(checked.rows == (std::string(selection) == "shared_keys" ? 32 : 40));
      const auto part = oracle(checked, inputs.q, inputs.k, inputs.v);
      const Tensor<double> expected = checked.of(whole.out);
      REQUIRE(part.out.size() == expected.size());
      double largest = 0;
      for (int64_t i = 0; i < expected.size(); ++i)
        largest = std::max(largest, std::abs(part.out.data()[i] - expected.data()[i]));
      CHECK(largest < 1e-12);
    }
  }
}

TEST_CASE("dQ of the checked rows is that of the whole problem, and d_out is the seed's") {
  const Parameters p =
      small_problem({{"mask", std::string("causal")}, {"normalizer", std::string("entmax")}});
  const AttentionSpec spec = problem_spec(p);
  const auto inputs = problem_inputs(p)->cast<double>();
  const Tensor<double> d_out = problem_d_out(p)->cast<double>();
  const auto whole = cpu_ref::attention_backward<double>(spec, inputs.q, inputs.k, inputs.v, d_out);
  const CheckedRows checked = checked_rows(spec, 20);
  const Tensor<double> part = oracle_d_q(checked, inputs.q, inputs.k, inputs.v, d_out);
  const Tensor<double> expected = checked.of(whole.dq);
  REQUIRE(part.size() == expected.size());
  double largest = 0, sum = 0;
  for (int64_t i = 0; i < part.size(); ++i)
    largest = std::max(largest, std::abs(part.data()[i] - expected.data()[i]));
  CHECK(largest < 1e-12);
  for (int64_t i = 0; i < d_out.size(); ++i) sum += d_out.data()[i] * d_out.data()[i];
  CHECK(sum / static_cast<double>(d_out.size()) == doctest::Approx(1).epsilon(0.05));
  const Parameters other = small_problem({{"seed", int64_t{2}}});
  CHECK(problem_d_out(other)->data()[0] != problem_d_out(p)->data()[0]);
}

TEST_CASE("a missing Python is no error of the run: the case says what is missing") {
  setenv("SPLASH_PEER_PYTHON", "no-such-python", 1);
  const auto result = run_torch_gpu_peer({.backend = "cudnn", .dtype = "bfloat16", .inputs_key = "a"},
                                         *problem_inputs(small_problem({})));
  unsetenv("SPLASH_PEER_PYTHON");
  CHECK(result.unavailable.find("no-such-python: not found") == 0);
}
