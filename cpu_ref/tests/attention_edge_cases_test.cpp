// Difficult inputs: ties, single keys, rows without keys, infinities, NaN, huge logits, wrong arguments.
#include <limits>

#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/attention/naive.h"
#include "cpu_ref/tests/attention_test_support.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Calls use(spec) for every pair of a normalizer and a selection.
template <class Use>
void for_each_spec(const AttentionShape& shape, double scale, const Mask& mask, const Use& use) {
  for (const Normalizer& normalizer : all_normalizers()) {
    for (const Selection& selection : all_selections(shape)) {
      const AttentionSpec spec{shape, scale, normalizer, selection, mask};
      INFO(describe(spec));
      use(spec);
    }
  }
}

bool all_nan(const auto& row) {
  return row.array().isNaN().all();
}
bool all_finite(const Tensor<double>& t) {
  return t.matrix(0, 0).allFinite();
}

std::vector<int32_t> columns_of(const ForwardResult<double>& result, int64_t row) {
  const auto& p = *result.probabilities;
  return {p.columns.begin() + p.row_offsets[row], p.columns.begin() + p.row_offsets[row + 1]};
}

}  // namespace

TEST_CASE("ties keep the lower key index") {
  const AttentionShape shape{1, 1, 1, 2, 11, 2};
  auto inputs = random_inputs<double>(shape, 1);
  inputs.q.matrix(0, 0).setOnes();
  inputs.k.matrix(0, 0).setOnes();
  for (const Normalizer& normalizer : all_normalizers()) {
    AttentionSpec spec{shape, 1, normalizer, {.kind = SelectionKind::top_k_row, .k_keep = 3}, {}};
    INFO(describe(spec));
    const auto by_row = forward(spec, inputs, {.keep_probabilities = true});
    CHECK(columns_of(by_row, 1) == std::vector<int32_t>{0, 1, 2});
    if (normalizer.kind != NormalizerKind::power_unnormalized) {
      for (const double p : by_row.probabilities->values) CHECK(p == doctest::Approx(1.0 / 3));
    }
    spec.selection = {.kind = SelectionKind::top_k_block, .k_keep = 2, .block = 4};
    const auto by_block = forward(spec, inputs, {.keep_probabilities = true});
    CHECK(columns_of(by_block, 0) == std::vector<int32_t>{0, 1, 4, 5, 8, 9});
  }
}

TEST_CASE("one visible key takes all") {
  const AttentionShape shape{1, 1, 1, 3, 5, 4};
  const auto inputs = random_inputs<double>(shape, 2);
  const Mask only_key_2{.q_positions = {0, 0, 0}, .k_positions = {1, 1, 0, 1, 1}};
  for (const double alpha : {1.01, 1.5, 2.0, 4.0}) {
    const AttentionSpec spec{shape, 1, {NormalizerKind::entmax, {alpha}}, {}, only_key_2};
    const auto result = forward(spec, inputs);
    for (int64_t i = 0; i < 3; ++i) {
      CHECK(result.support[i] == 1);
      const double z = (alpha - 1) * inputs.q.matrix(0, 0).row(i).dot(inputs.k.matrix(0, 0).row(2));
      CHECK(result.tau[i] == doctest::Approx(z - 1));
      CHECK((result.out.matrix(0, 0).row(i) - inputs.v.matrix(0, 0).row(2)).norm() < 1e-12);
    }
    const auto gradients = backward(spec, inputs, random_dout<double>(shape, 2));
    CHECK(gradients.dq.matrix(0, 0).isZero(1e-12));  // p is 1 whatever the score is
    CHECK(std::abs(gradients.dalpha[0]) < 1e-9);
  }
}

TEST_CASE("rows without keys give zeros and zero gradients") {
  const AttentionShape shape{1, 1, 1, 6, 4, 3};  // causal, bottom-right: queries 0 and 1 see nothing
  const auto inputs = random_inputs<double>(shape, 3);
  for_each_spec(shape, 1, {.causal = true}, [&](const AttentionSpec& spec) {
    const auto result = forward(spec, inputs, {.map_block = 2});
    CHECK(result.out.matrix(0, 0).topRows(2).isZero(0));
    CHECK(result.support[0] == 0);
    CHECK(
        (spec.normalizer.kind == NormalizerKind::entmax ? result.tau[1] == kInf : std::isnan(result.tau[1])));
    CHECK(result.blocks.state[0] == BlockMap::hidden);
    const auto gradients = backward(spec, inputs, random_dout<double>(shape, 3));
    CHECK(gradients.dq.matrix(0, 0).topRows(2).isZero(0));
    CHECK(all_finite(gradients.dq));
    CHECK(all_finite(gradients.dk));
    CHECK(all_finite(gradients.dv));
    CHECK(std::isfinite(gradients.dalpha[0]));
  });
}

TEST_CASE("power without a positive score gives zeros and zero gradients") {
  const AttentionShape shape{1, 1, 1, 3, 4, 2};
  auto inputs = random_inputs<double>(shape, 4);
  inputs.q.matrix(0, 0).setOnes();
  inputs.k.matrix(0, 0) = -inputs.k.matrix(0, 0).cwiseAbs();
  inputs.k.matrix(0, 0).row(1).setZero();
  for (const NormalizerKind kind : {NormalizerKind::power, NormalizerKind::power_unnormalized}) {
    for (const double alpha : {0.5, 1.0, 2.0}) {
      const AttentionSpec spec{shape, 1, {kind, {alpha}}, {}, {}};
      CHECK(forward(spec, inputs).out.matrix(0, 0).isZero(0));
      const auto gradients = backward(spec, inputs, random_dout<double>(shape, 4));
      CHECK(gradients.dq.matrix(0, 0).isZero(0));
      CHECK(gradients.dk.matrix(0, 0).isZero(0));
      CHECK(gradients.dv.matrix(0, 0).isZero(0));
      CHECK(gradients.dalpha[0] == 0);
    }
  }
}

TEST_CASE("a score of -inf is a masked key, in forward and backward") {
  const AttentionShape shape{1, 1, 1, 5, 9, 3};
  auto inputs = random_inputs<double>(shape, 5);
  inputs.q.matrix(0, 0).col(1) = inputs.q.matrix(0, 0).col(1).cwiseAbs();
  const auto dout = random_dout<double>(shape, 5);
  auto infinite = inputs;
  infinite.k.row(0, 0, 4)[1] = -kInf;
  const Mask without_key_4{.q_positions = {0, 0, 0, 0, 0}, .k_positions = {0, 0, 0, 0, 1, 0, 0, 0, 0}};
  for_each_spec(shape, 1, {}, [&](const AttentionSpec& spec) {
    AttentionSpec masked = spec;
    masked.mask = without_key_4;
    const auto result = forward(spec, infinite), expected = forward(masked, inputs);
    CHECK(same_bits(result.out, expected.out));
    CHECK(result.support == expected.support);
    const auto gradients = backward(spec, infinite, dout), wanted = backward(masked, inputs, dout);
    CHECK(same_bits(gradients.dq, wanted.dq));
    CHECK(same_bits(gradients.dk, wanted.dk));
    CHECK(same_bits(gradients.dv, wanted.dv));
    CHECK(same_bits(gradients.dalpha, wanted.dalpha));
  });
}

TEST_CASE("a NaN or +inf score gives a NaN row and touches no other row") {
  const AttentionShape shape{1, 1, 1, 4, 9, 3};
  const auto inputs = random_inputs<double>(shape, 6);
  const auto dout = random_dout<double>(shape, 6);
  for (const double poison : {kNan, kInf, -kInf}) {
    auto poisoned = inputs;
    poisoned.q.row(0, 0, 2)[0] = poison;  // keys of both signs turn an infinity into scores of both signs
    for_each_spec(shape, 1, {}, [&](const AttentionSpec& spec) {
      const auto result = forward(spec, poisoned), clean = forward(spec, inputs);
      const auto gradients = backward(spec, poisoned, dout), wanted = backward(spec, inputs, dout);
      for (int64_t i = 0; i < shape.q_len; ++i) {
        if (i == 2) {
          CHECK(all_nan(result.out.matrix(0, 0).row(i)));
          CHECK(all_nan(gradients.dq.matrix(0, 0).row(i)));
          CHECK(std::isnan(result.tau[i]));
          CHECK(result.support[i] == 0);
        } else {
          CHECK(result.out.matrix(0, 0).row(i) == clean.out.matrix(0, 0).row(i));
          CHECK(gradients.dq.matrix(0, 0).row(i) == wanted.dq.matrix(0, 0).row(i));
        }
      }
    });
  }
}

TEST_CASE("what is masked or has no weight may be NaN") {
  const AttentionShape shape{1, 1, 1, 4, 4, 3};
  auto inputs = random_inputs<double>(shape, 8);
  inputs.k.matrix(0, 0).row(3).setConstant(kNan);  // only the last query sees it
  const AttentionSpec causal{shape, 1, {NormalizerKind::entmax, {1.5}}, {}, {.causal = true}};
  CHECK(forward(causal, inputs).out.matrix(0, 0).topRows(3).allFinite());

  inputs = random_inputs<double>(shape, 8);
  inputs.q.matrix(0, 0).setConstant(10);
  inputs.k.matrix(0, 0).row(1).setConstant(-10);
  inputs.v.matrix(0, 0).row(1).setConstant(kNan);
  const AttentionSpec plain{shape, 1, {NormalizerKind::entmax, {1.5}}, {}, {}};
  CHECK(all_finite(forward(plain, inputs).out));
  CHECK(all_finite(backward(plain, inputs, random_dout<double>(shape, 8)).dk));
}

TEST_CASE("huge logits lose nothing") {
  const AttentionShape shape{1, 2, 1, 9, 33, 4};
  const auto inputs = random_inputs<float>(shape, 10, 0.25);
  for (const double alpha : {1.2, 1.5, 2.0, 2.5}) {
    for (const double scale : {4096.0, 65536.0}) {  // scores are multiples of 2^8 or more: exact in float
      const AttentionSpec spec{shape, scale, {NormalizerKind::entmax, {alpha}}, {}, {}};
      INFO(describe(spec));
      const NaiveForward expected = naive_forward(spec, inputs.cast<double>());
      CHECK(max_error(forward(spec, inputs).out, expected.out) < 1e-6);
      CHECK(max_error(forward(spec, inputs.cast<double>()).out, expected.out) < 1e-12);
      const auto gradients = backward(spec, inputs, random_dout<float>(shape, 10));
      CHECK(gradients.dq.matrix(0, 0).allFinite());
      CHECK(gradients.dk.matrix(0, 0).allFinite());
    }
  }
}

TEST_CASE("wrong arguments are told before anything runs") {
  const AttentionShape shape{1, 2, 1, 3, 4, 2};
  const auto inputs = random_inputs<double>(shape, 12);
  AttentionSpec spec{shape, 1, {NormalizerKind::entmax, {1.3}}, {}, {}};
  CHECK_THROWS_AS(forward(spec, inputs, {.solver = Solver::sorting}), Unsupported);
  CHECK_THROWS_AS(forward(spec, inputs, {.map_block = 0}), InvalidArgument);
  CHECK_THROWS_AS(backward(spec, inputs, Tensor<double>(1, 2, 3, 3)), InvalidArgument);
  spec.shape.kv_len = 5;
  CHECK_THROWS_AS(forward(spec, inputs), InvalidArgument);
}

TEST_CASE("keys outside the shared list take no part, NaN or not") {
  const AttentionShape shape{2, 4, 2, 9, 13, 3};
  const auto inputs = random_inputs<double>(shape, 12);
  const auto dout = random_dout<double>(shape, 12);
  const Selection selection = random_shared_keys(shape, 13);
  auto poisoned = inputs;
  AttentionSpec spec{shape, 1, {}, selection, {}};
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      for (int64_t tile = 0; tile < selection.tiles(shape); ++tile) {  // removes key 5 from every list
        const int64_t list = (b * shape.kv_heads + h) * selection.tiles(shape) + tile;
        const auto begin = spec.selection.keys.begin() + list * selection.k_keep,
                   end = begin + selection.k_keep;
        std::fill(std::remove(begin, end, 5), end, -1);
      }
      poisoned.k.row(b, h, 5)[1] = kNan;
      poisoned.v.row(b, h, 5)[2] = kNan;
    }
  }
  for (const Normalizer& normalizer : all_normalizers()) {
    spec.normalizer = normalizer;
    INFO(describe(spec));
    const auto result = forward(spec, poisoned, {.keep_probabilities = true});
    CHECK(same_bits(result.out, forward(spec, inputs).out));
    CHECK(std::ranges::count(result.probabilities->columns, 5) == 0);
    const auto gradients = backward(spec, poisoned, dout), wanted = backward(spec, inputs, dout);
    CHECK(same_bits(gradients.dq, wanted.dq));
    CHECK(same_bits(gradients.dk, wanted.dk));
    CHECK(same_bits(gradients.dv, wanted.dv));
    CHECK(gradients.dk.row(1, 1, 5)[1] == 0);
    CHECK(gradients.dv.row(1, 1, 5)[2] == 0);
  }
}

TEST_CASE("a NaN score inside the shared list gives NaN to the rows that see it, and to no other") {
  const AttentionShape shape{1, 2, 1, 6, 8, 3};
  auto inputs = random_inputs<double>(shape, 14);
  inputs.k.row(0, 0, 4)[0] = kNan;
  // Tile 0 lists key 4, which the causal mask lets queries 2 and 3 see; tile 1 does not list it.
  const Selection selection{
      .kind = SelectionKind::shared_keys, .k_keep = 3, .block = 4, .keys = {0, 1, 4, 2, 5, -1}};
  for (const Normalizer& normalizer : all_normalizers()) {
    const auto result = forward(AttentionSpec{shape, 1, normalizer, selection, {.causal = true}}, inputs);
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < shape.q_len; ++i) {
        CHECK(all_nan(result.out.matrix(0, h).row(i)) == (i == 2 || i == 3));
      }
    }
  }
}
