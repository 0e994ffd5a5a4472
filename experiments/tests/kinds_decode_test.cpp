// The kind gpu-decode, as far as it can be tested without a GPU.

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/workload.h"
#include "cpu_ref/attention/forward.h"
#include "cpu_ref/decode/decode.h"
#include "experiments/kinds/support/decode_problem.h"
#include "experiments/kinds/support/decode_rungs.h"
#include "experiments/kinds/support/tensor_file.h"
#include "experiments/tests/kinds_helpers.h"

using namespace splash;
using namespace splash::experiments;
using namespace splash::experiments::tests;

namespace {

Parameters step(const Parameters& changes) {
  return parameters_of("gpu-decode", changes);
}

Parameters captured(const Parameters& changes) {
  return step(
      with({{"input", std::string("smollm2")}, {"batch", int64_t{3}}, {"layer", int64_t{9}}}, changes));
}

DecodedHead random_head(int64_t length) {
  const AttentionShape shape{.q_heads = 3, .q_len = 2, .kv_len = length, .head_dim = 16};
  const auto in = make_inputs<double>({.seed = 5, .query_variance = 6}, shape);
  return {in.k, in.v, in.q, {}, {}, {}};
}

// With the results of the oracle itself.
DecodedHead solved_head(int64_t length) {
  DecodedHead head = random_head(length);
  cpu_ref::PagedCache cache{.page_size = length, .head_dim = 16};
  cache.keys.assign(head.k.data(), head.k.data() + head.k.size());
  cache.values.assign(head.v.data(), head.v.data() + head.v.size());
  cache.table = {0};
  cache.lengths = {static_cast<int32_t>(length)};
  const cpu_ref::DecodeRows rows = cpu_ref::decode(cache, {head.q, {1.5}, {0.25}});
  head.out = rows.out;
  head.tau.assign(rows.tau.begin(), rows.tau.end());
  head.support.assign(rows.support.begin(), rows.support.end());
  return head;
}

}  // namespace

TEST_CASE("gpu-decode refuses what a step does not take") {
  CHECK(get_number(step({}), "alpha") == 1.5);
  CHECK_THROWS_WITH_AS(step({{"alpha", 1.0}}), "alpha is 1; a step of decode takes 1.01 to 2",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(step({{"head_dim", int64_t{96}}}), "decode takes head_dim 64, 128 and 256, not 96",
                       Unsupported);
  CHECK_THROWS_AS(step({{"page_size", int64_t{48}}}), Unsupported);
  CHECK_THROWS_AS(step({{"page_size", int64_t{0}}}), Unsupported);
  CHECK_THROWS_AS(step({{"q_len", int64_t{17}}}), Unsupported);
  CHECK_THROWS_AS(step({{"kv_heads", int64_t{5}}}), InvalidArgument);
  CHECK_THROWS_AS(step({{"scale", -1.0}}), InvalidArgument);
  CHECK_THROWS_AS(step({{"query_variance", NAN}}), InvalidArgument);
  CHECK_THROWS_AS(step({{"checked_heads", int64_t{0}}}), InvalidArgument);
  CHECK_THROWS_AS(step({{"implementation", std::string("decode/*")}}), InvalidArgument);
  CHECK_THROWS_AS(captured({{"implementation", std::string("torch-splash")}}), InvalidArgument);
}

TEST_CASE("decode/* is every rung; rungs are known by name") {
  const Kind& kind = find_kind("gpu-decode");
  const auto rungs = kind.choices("implementation", std::string("decode/*"));
  REQUIRE(rungs.size() == decode_rungs().size());
  for (const Value& rung : rungs) CHECK(find_decode_rung(std::get<std::string>(rung)) != nullptr);
  CHECK(find_decode_rung("torch-cudnn") == nullptr);
  CHECK(kind.choices("implementation", std::string("torch-cudnn")).size() == 1);
}

TEST_CASE("dense attention depends on sizes, a captured step on its text") {
  const Kind& kind = find_kind("gpu-decode");
  const Parameters dense = kind.used(step({{"implementation", std::string("torch-flash")}}));
  for (const char* name : {"alpha", "page_size", "input", "layer"}) CHECK(!dense.contains(name));
  CHECK(get_number(dense, "scale") == 1 / std::sqrt(128.0));
  const Parameters package = kind.used(step({{"implementation", std::string("torch-splash")}}));
  CHECK(get_number(package, "alpha") == 1.5);
  CHECK(!package.contains("input"));
  const Parameters text = kind.used(captured({}));
  CHECK(!text.contains("query_variance"));
  CHECK(get_integer(text, "layer") == 9);
  CHECK(get_number(text, "scale") == 0.125);
  CHECK(!kind.used(step({})).contains("layer"));
  CHECK(kind.input_hash(captured({})) != kind.input_hash(captured({{"layer", int64_t{4}}})));
}

TEST_CASE("a capture says how many keys and heads a step has, and only such steps are taken") {
  const Parameters p = captured({});
  CHECK(decode_shape(p) ==
        AttentionShape{.batch = 3, .q_heads = 3, .kv_heads = 1, .q_len = 1, .kv_len = 2048, .head_dim = 64});
  CHECK_NOTHROW(captured({{"q_heads", int64_t{9}}, {"kv_heads", int64_t{3}}}));
  CHECK_THROWS_AS(captured({{"q_heads", int64_t{8}}, {"kv_heads", int64_t{2}}}),
                  InvalidArgument);  // another group
  CHECK_THROWS_AS(captured({{"kv_len", int64_t{1024}}}), InvalidArgument);
  CHECK_THROWS_AS(captured({{"layer", int64_t{1}}}), InvalidArgument);
  CHECK(!captured_step(step({})).has_value());
}

TEST_CASE("each sequence of a captured step asks as the model did at its place in the text") {
  const Parameters p = captured(
      {{"q_heads", int64_t{9}}, {"kv_heads", int64_t{3}}, {"batch", int64_t{514}}, {"q_len", int64_t{2}}});
  const gpu::decode::GivenTensors given = captured_step(p).value();
  CHECK(given.lengths.front() == 2048);
  CHECK(given.lengths[2] == 2046);
  CHECK(given.lengths[508] == 1540);
  // The file holds 509 pairs of queries with a pair before them: then it begins again.
  CHECK(given.lengths[509] == 2048);
  for (int64_t i = 0; i < 64; ++i)  // sequence 2 is two tokens shorter
    CHECK(given.q_before.row(0, 0, 0)[i] == given.q.row(2, 0, 0)[i]);
  REQUIRE(given.k.heads() == 1);

  // Attention of the model at that place: causal, so a query sees the keys up to its own.
  const Parameters file =
      parameters_of("gpu-attention", {{"input", std::string("smollm2")}, {"layer", int64_t{9}}});
  const TensorFile& held = open_tensor_file("smollm2");
  const Tensor<float> q = analysis::read_captured_tensor(held.hdf5, 0, "q", {2, 0});
  AttentionSpec spec{.shape = {.q_heads = 3, .kv_heads = 1, .q_len = 512, .kv_len = 2048, .head_dim = 64}};
  spec.normalizer = {NormalizerKind::entmax, {1.5}};
  spec.mask.causal = true;
  spec.scale = get_number(file, "scale");
  const auto expected = cpu_ref::attention_forward<double>(spec, q.cast<double>(), given.k.cast<double>(),
                                                           given.v.cast<double>());
  for (const int64_t sequence : {0, 7}) {
    const auto length = static_cast<int64_t>(given.lengths[static_cast<size_t>(sequence)]);
    cpu_ref::PagedCache cache{.page_size = 2048, .head_dim = 64};
    cache.keys.assign(given.k.data(), given.k.data() + given.k.size());
    cache.values.assign(given.v.data(), given.v.data() + given.v.size());
    cache.table = {0};
    cache.lengths = {static_cast<int32_t>(length)};
    for (const int64_t key_head : {0, 2}) {  // the one captured head stands for each
      Tensor<double> queries(1, 3, 2, 64);
      std::copy_n(given.q.view().row(sequence, 3 * key_head, 0), queries.size(), queries.data());
      const auto rows = cpu_ref::decode(cache, {queries, {1.5}, {0.125}});
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t i = 0; i < 2; ++i) {
          const double* want = expected.out.view().row(0, h, 510 - sequence + i);
          for (int64_t d = 0; d < 64; ++d) CHECK(std::abs(rows.out.view().row(0, h, i)[d] - want[d]) < 1e-9);
        }
      }
    }
  }
}

TEST_CASE("a head is held against the oracle: output, threshold, support") {
  const DecodedHead right = solved_head(300);
  const DecodeErrors none = right.errors(1.5, 0.25);
  CHECK(none.rows == 6);
  CHECK(none.wrong_supports == 0);
  CHECK(none.max_error == 0);
  CHECK(none.tau_error < 1e-6);
  CHECK(none.reference > 0);

  DecodedHead wrong = right;
  wrong.support[1] += 1;
  wrong.support[4] = 0;
  wrong.tau[2] += 0.5F;
  wrong.out.data()[7] += 0.25;
  const DecodeErrors found = wrong.errors(1.5, 0.25);
  CHECK(found.wrong_supports == 2);
  CHECK(found.tau_error == doctest::Approx(0.5).epsilon(1e-3));
  CHECK(found.max_error == doctest::Approx(0.25));
  CHECK(found.squared == doctest::Approx(0.0625));

  DecodedHead poisoned = right;
  poisoned.out.data()[3] = NAN;
  poisoned.tau[0] = NAN;
  DecodeErrors sum = none;
  sum.add(poisoned.errors(1.5, 0.25));
  CHECK(std::isinf(sum.max_error));
  CHECK(std::isinf(sum.tau_error));
  CHECK(std::isnan(sum.squared));
  CHECK(sum.rows == 12);
}

TEST_CASE("caches in turn hold three times what L2 does") {
  using gpu::decode::rotated_caches;
  CHECK(rotated_caches(int64_t{1} << 30, 50 << 20) == 1);
  CHECK(rotated_caches(50 << 20, 50 << 20) == 3);
  CHECK(rotated_caches(19'000'000, 50 << 20) == 9);
  CHECK(rotated_caches(1000, 50 << 20) == gpu::decode::kMostCaches);
}

TEST_CASE("a step's counts are summed over its units, fallen ones by their sequence's keys") {
  const AttentionShape shape{.batch = 2, .q_heads = 12, .kv_heads = 1, .kv_len = 500, .head_dim = 64};
  gpu::decode::StepResults results;
  results.support.assign(24, 3);
  results.support[20] = 300;  // of the last unit, with 900 in all
  results.support[21] = 594;
  // Two units a sequence, of eight and of four rows.
  results.counts = {100, 10, 4, 0, 0, 0, 0, 1, 90, 30, 6, 0, 90, 40, 7, 1};
  const analysis::DecodeCounts sums = decode_counts(shape, std::vector<int32_t>{500, 400}, results);
  CHECK(sums.keys == 1800);
  CHECK(sums.began == 1300);  // the second unit took the dense pass at once
  CHECK(sums.screened == 280);
  CHECK(sums.candidates == 80);
  CHECK(sums.rescored == 17);
  CHECK(sums.fell_back == 900);
  CHECK(sums.values == 24 + 12 + 24 + 400);  // of a unit by the dense pass at most one a key
  CHECK(sums.support == 22 * 3 + 894);
}
