// The fast implementation against the plain one: same support, same tau, same output, same gradients.
#include <cmath>
#include <limits>
#include <omp.h>
#include <string>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/random.h"
#include "core/workload.h"
#include "cpu_ref/attention/screened.h"

using namespace splash;
using namespace splash::cpu_ref;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double nmse(const Tensor<float>& out, const Tensor<double>& ref) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < ref.size(); ++i) {
    error += std::pow(out.data()[i] - ref.data()[i], 2);
    norm += std::pow(ref.data()[i], 2);
  }
  return norm > 0 ? error / norm : error;
}

// One computes scores in float, the other in double, so keys this close to tau may differ.
constexpr double kScoreError = 2e-5;

void check_forward(const AttentionSpec& spec, const AttentionInputs<float>& in) {
  const auto exact_in = in.cast<double>();
  const auto exact =
      attention_forward<double>(spec, exact_in.q, exact_in.k, exact_in.v, {.keep_probabilities = true});
  const auto fast = screened_forward(spec, in.q, in.k, in.v, true);
  CHECK(nmse(fast.out, exact.out) < 1e-9);
  REQUIRE(fast.probabilities.row_offsets.back() == static_cast<int64_t>(fast.probabilities.columns.size()));
  const AttentionShape& s = spec.shape;
  for (int64_t row = 0; row < s.rows(); ++row) {
    CAPTURE(row);
    if (std::isinf(exact.tau[row])) {
      REQUIRE(fast.support[row] == 0);
      REQUIRE(std::isinf(fast.tau[row]));
      continue;
    }
    const double tolerance = kScoreError * std::max(1.0, std::abs(exact.tau[row]));
    REQUIRE(std::abs(fast.tau[row] - exact.tau[row]) < tolerance);
    double sum = 0;
    const auto& p = fast.probabilities;
    for (int64_t n = p.row_offsets[row]; n < p.row_offsets[row + 1]; ++n) {
      sum += p.values[n];
      REQUIRE(p.values[n] > 0);
      if (n > p.row_offsets[row]) REQUIRE(p.columns[n] > p.columns[n - 1]);
    }
    const double a = spec.normalizer.alpha_of(row / s.q_len % s.q_heads) - 1;
    const double u = a * spec.sink_of(row / s.q_len % s.q_heads) - fast.tau[row];
    const double p_sink = u > 0 ? std::pow(u, 1 / a) : 0;
    REQUIRE(std::abs(sum + p_sink - 1) < 1e-5);
    // No key is lost: keys that only the exact support has lie within the score error of tau, so their
    // probability is at most error^(1/(alpha-1)).
    const auto& e = *exact.probabilities;
    const double alpha = spec.normalizer.alpha_of(row / s.q_len % s.q_heads);
    const double negligible = std::pow(2 * tolerance, 1 / (alpha - 1));
    int64_t n = p.row_offsets[row];
    for (int64_t m = e.row_offsets[row]; m < e.row_offsets[row + 1]; ++m) {
      while (n < p.row_offsets[row + 1] && p.columns[n] < e.columns[m]) ++n;
      const bool found = n < p.row_offsets[row + 1] && p.columns[n] == e.columns[m];
      if (!found) REQUIRE(e.values[m] < negligible);
    }
  }
}

void check_backward(const AttentionSpec& spec, const AttentionInputs<float>& in) {
  const AttentionShape& s = spec.shape;
  const auto dout = make_inputs<float>({.seed = 99, .query_variance = 1}, s).q;
  const auto fast =
      screened_backward(spec, screened_forward(spec, in.q, in.k, in.v, true), in.q, in.k, in.v, dout);
  const auto exact_in = in.cast<double>();
  const auto exact =
      attention_backward<double>(spec, exact_in.q, exact_in.k, exact_in.v, dout.cast<double>());
  CHECK(nmse(fast.dq, exact.dq) < 1e-7);
  CHECK(nmse(fast.dk, exact.dk) < 1e-7);
  CHECK(nmse(fast.dv, exact.dv) < 1e-7);
  for (int64_t h = 0; h < s.q_heads; ++h) {
    CHECK(fast.dalpha[h] == doctest::Approx(exact.dalpha[h]).epsilon(2e-3).scale(1));
    CHECK(fast.dsinks[h] == doctest::Approx(exact.dsinks[h]).epsilon(1e-4).scale(1));
  }
  REQUIRE(fast.dbias.size() == exact.dbias.size());
  double error = 0, norm = 1e-3;  // one entry for all distances changes nothing
  for (size_t i = 0; i < exact.dbias.size(); ++i) {
    error += std::pow(fast.dbias[i] - exact.dbias[i], 2);
    norm += std::pow(exact.dbias[i], 2);
  }
  CHECK(error / norm < 1e-7);
}

std::vector<Mask> screened_masks(const AttentionShape& s) {
  std::vector<Mask> masks(7);
  masks[1].causal = true;
  for (int64_t i = 0; i < s.q_len; ++i) masks[2].q_positions.push_back((i * 7) % s.kv_len);
  for (int64_t j = 0; j < s.kv_len; ++j) masks[2].k_positions.push_back((j * 5) % s.kv_len);
  masks[3].cu_seqlens_q = {0, s.q_len / 3, s.q_len / 3, s.q_len};
  masks[3].cu_seqlens_k = {0, s.kv_len / 4, s.kv_len / 2, s.kv_len};
  masks[4] = masks[3];
  masks[4].causal = true;
  masks[4].q_positions = masks[2].q_positions;
  masks[4].k_positions = masks[2].k_positions;
  const CounterRandom random(8);
  for (int64_t row = 0; row < s.batch * s.q_len; ++row) {
    for (int64_t key = 0; key < s.kv_len; key += kKeysAWord) {
      const auto at = static_cast<uint64_t>(row * s.kv_len + key);
      const uint64_t kind =
          random.bits(row % 60 < 50 ? key : at) % 4;  // many rows in a row alike: whole tiles
      const uint64_t bits = kind == 0 ? 0 : kind == 1 ? ~uint64_t{0} : random.bits(at + 1);
      masks[5].pairs.push_back(bits & pair_bits(nullptr, 0, std::min(kKeysAWord, s.kv_len - key)));
    }
  }
  masks[6] = masks[5];
  masks[6].causal = true;
  masks[6].window = 40;
  return masks;
}

}  // namespace

TEST_CASE("screened attention equals the double reference: alphas, masks, GQA, lengths no tile divides") {
  for (const double alpha : {1.05, 1.3, 1.5, 2.0, 3.0}) {
    for (const auto& [q_len, kv_len] : {std::pair<int64_t, int64_t>{1, 1}, {61, 131}, {97, 300}, {150, 33}}) {
      AttentionSpec spec{
          .shape = {
              .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = q_len, .kv_len = kv_len, .head_dim = 24}};
      spec.normalizer.alpha = {alpha};
      const auto in =
          make_inputs<float>({.seed = static_cast<uint64_t>(q_len), .query_variance = 4}, spec.shape);
      for (const Mask& mask : screened_masks(spec.shape)) {
        spec.mask = mask;
        CAPTURE(alpha);
        CAPTURE(to_string(spec.shape));
        CAPTURE(mask.causal);
        check_forward(spec, in);
      }
    }
  }
}

TEST_CASE("screened attention equals the double reference: capped scores, sinks and dropout, both passes") {
  for (const double alpha : {1.1, 1.5, 2.0, 3.0}) {
    for (const double softcap : {0.3, 3.0, 50.0}) {  // from nearly all scores at the cap to none
      for (const int64_t k_keep : {0, 5}) {
        AttentionSpec spec{
            .shape = {.q_heads = 4, .kv_heads = 2, .q_len = 45, .kv_len = 200, .head_dim = 24}};
        spec.normalizer.alpha = {alpha};
        spec.mask.causal = true;
        // Where most scores are near the cap, float has some equal that double has not: k_keep chooses
        // others, and alpha 3, infinitely steep at tau, shows the difference.
        if ((k_keep > 0 || alpha > 2) && softcap < 1) continue;
        if (k_keep > 0) spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
        spec.softcap = softcap;
        CAPTURE(alpha);
        CAPTURE(softcap);
        CAPTURE(k_keep);
        const auto in = make_inputs<float>({.seed = 5, .query_variance = 9}, spec.shape);
        check_forward(spec, in);
        check_backward(spec, in);
        spec.sinks = {0.2, 2.5, -INFINITY, 30};
        check_forward(spec, in);
        check_backward(spec, in);
        spec.dropout = {.rate = 0.4, .seed = 3};
        check_forward(spec, in);
        check_backward(spec, in);
      }
    }
  }
}

TEST_CASE("screened attention equals the double reference: a bias of distances, both passes") {
  for (const auto& [q_len, kv_len] : {std::pair<int64_t, int64_t>{31, 900}, {101, 101}, {60, 33}}) {
    for (const double size : {0.1, 40.0}) {  // from little of the scores to nearly all
      for (const int64_t distances : {1, 40, 2000}) {
        AttentionSpec spec{
            .shape = {
                .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = q_len, .kv_len = kv_len, .head_dim = 16}};
        spec.normalizer.alpha = {1.2, 1.5, 1.9, 2.0};
        spec.bias = {.distances = distances, .first = -distances / 3 * 2};
        for (int64_t i = 0; i < 4 * distances; ++i)
          spec.bias.table.push_back(size * CounterRandom(7).normal(i));
        for (int64_t i = 0; i < distances; ++i)  // ALiBi's slope
          spec.bias.table[i] = 0.05 * size * static_cast<double>(spec.bias.first + i);
        CAPTURE(q_len);
        CAPTURE(size);
        CAPTURE(distances);
        const auto in = make_inputs<float>({.seed = 11, .query_variance = 9}, spec.shape);
        spec.mask = screened_masks(spec.shape)[2];
        check_forward(spec, in);
        spec.mask = {.causal = true, .window = 70};
        check_forward(spec, in);
        check_backward(spec, in);
        spec.mask = {};
        spec.softcap = 5;
        spec.scale = -0.3;
        check_forward(spec, in);
        check_backward(spec, in);
        spec.sinks = {0.2, 2.5, -INFINITY, 30};
        spec.dropout = {.rate = 0.4, .seed = 3};
        check_backward(spec, in);
      }
    }
  }
}

TEST_CASE("a bias rules keys out by tiles: few of the keys that it puts far below are looked at") {
  AttentionSpec spec{.shape = {.q_len = 96, .kv_len = 8192, .head_dim = 16}, .mask = {.causal = true}};
  const auto in = make_inputs<float>({.seed = 12, .query_variance = 0.01}, spec.shape);
  const int64_t without = screened_forward(spec, in.q, in.k, in.v).listed;
  spec.bias = {.distances = 8192, .first = -8191};  // ALiBi
  for (int64_t i = 0; i < 8192; ++i) spec.bias.table.push_back(0.25 * static_cast<double>(i - 8191));
  const auto with = screened_forward(spec, in.q, in.k, in.v);
  CHECK(without > 96 * 1000);
  CHECK(with.listed < 96 * 50);
}

TEST_CASE("screened attention equals the double reference on every workload and at near-dense supports") {
  for (const auto kind : {WorkloadKind::gaussian, WorkloadKind::clustered, WorkloadKind::local,
                          WorkloadKind::sink, WorkloadKind::ties}) {
    for (const double variance : {0.01, 1.0, 100.0}) {
      AttentionSpec spec{.shape = {.q_heads = 2, .kv_heads = 2, .q_len = 200, .kv_len = 500, .head_dim = 64}};
      spec.normalizer.alpha = {1.5, 1.9};
      CAPTURE(to_string(kind));
      CAPTURE(variance);
      check_forward(spec, make_inputs<float>({.kind = kind, .query_variance = variance}, spec.shape));
    }
  }
}

TEST_CASE("K_KEEP per row: exact where it holds the support, the same selection as the reference elsewhere") {
  AttentionSpec spec{.shape = {.q_heads = 2, .kv_heads = 1, .q_len = 70, .kv_len = 400, .head_dim = 32}};
  for (const int64_t k_keep : {1, 3, 8, 64, 1000}) {
    spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
    for (const auto kind : {WorkloadKind::gaussian, WorkloadKind::ties}) {
      CAPTURE(k_keep);
      const auto in = make_inputs<float>({.kind = kind, .query_variance = 0.5}, spec.shape);
      check_forward(spec, in);
      check_backward(spec, in);
    }
  }
}

TEST_CASE("the sink row: one key above a crowd of 32768, both kept as they should be") {
  for (const double gap : {0.5, 1.0, 1.5}) {
    for (const double spread : {0.1, 0.3}) {
      AttentionSpec spec{.shape = {.q_len = 2, .kv_len = 32768, .head_dim = 16}};
      check_forward(
          spec, make_inputs<float>({.kind = WorkloadKind::sink, .spread = spread, .gap = gap}, spec.shape));
    }
  }
}

TEST_CASE("huge logits, and scores that are all equal") {
  AttentionSpec spec{.shape = {.q_len = 40, .kv_len = 90, .head_dim = 8}};
  auto in = make_inputs<float>({.query_variance = 1e8}, spec.shape);
  check_forward(spec, in);
  std::fill(in.q.data(), in.q.data() + in.q.size(), 0.0f);
  check_forward(spec, in);
  const auto flat = screened_forward(spec, in.q, in.k, in.v, true);
  for (const int64_t support : flat.support) CHECK(support == 90);
}

TEST_CASE("masked, infinite and NaN scores behave as in the reference, and never hang") {
  AttentionSpec spec{.shape = {.q_len = 5, .kv_len = 40, .head_dim = 8}};
  auto in = make_inputs<float>({}, spec.shape);
  in.q.row(0, 0, 1)[3] = std::numeric_limits<float>::quiet_NaN();
  const auto out = screened_forward(spec, in.q, in.k, in.v);
  CHECK(std::isnan(out.out.row(0, 0, 1)[0]));
  CHECK(std::isfinite(out.out.row(0, 0, 0)[0]));

  in = make_inputs<float>({}, spec.shape);
  for (int64_t i = 0; i < 5; ++i) in.q.row(0, 0, i)[0] = 1;
  in.k.row(0, 0, 7)[0] = -kInfinity;  // every query's mask hides this key
  const auto masked = screened_forward(spec, in.q, in.k, in.v, true);
  for (const int32_t column : masked.probabilities.columns) CHECK(column != 7);
  CHECK(std::isfinite(masked.out.row(0, 0, 4)[0]));

  in = make_inputs<float>({.query_variance = 1e38}, spec.shape);
  for (int64_t i = 0; i < in.k.size(); ++i) in.k.data()[i] *= 1e30f;  // products overflow
  CHECK_NOTHROW(screened_forward(spec, in.q, in.k, in.v));
}

TEST_CASE("gradients over the support equal the double reference") {
  for (const double alpha : {1.2, 1.5, 2.0}) {
    AttentionSpec spec{
        .shape = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 61, .kv_len = 131, .head_dim = 24}};
    spec.normalizer.alpha = {alpha};
    const auto in = make_inputs<float>({.query_variance = 2}, spec.shape);
    for (const Mask& mask : screened_masks(spec.shape)) {
      spec.mask = mask;
      CAPTURE(alpha);
      check_backward(spec, in);
    }
  }
}

TEST_CASE("predicted thresholds change what is listed and nothing else, right, wrong or not even numbers") {
  for (const auto kind : {WorkloadKind::gaussian, WorkloadKind::sink, WorkloadKind::ties}) {
    for (const double alpha : {1.2, 1.5, 2.0, 3.0}) {
      for (const int64_t k_keep : {0, 5}) {
        AttentionSpec spec{
            .shape = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 90, .kv_len = 700, .head_dim = 24}};
        spec.normalizer.alpha = {alpha};
        spec.mask.causal = true;
        if (k_keep > 0) spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
        const auto in = make_inputs<float>({.kind = kind, .query_variance = 3}, spec.shape);
        const auto plain = screened_forward(spec, in.q, in.k, in.v, true);
        CAPTURE(alpha);
        CAPTURE(k_keep);
        CHECK(plain.misled_rows == 0);
        // From the rows' largest p: (largest z) - tau is p^(alpha - 1).
        const auto& p = plain.probabilities;
        std::vector<float> peaks(static_cast<size_t>(spec.shape.rows()));
        for (size_t row = 0; row < peaks.size(); ++row) {
          float largest = 0;
          for (int64_t n = p.row_offsets[row]; n < p.row_offsets[row + 1]; ++n)
            largest = std::max(largest, p.values[n]);
          peaks[row] = std::pow(largest, static_cast<float>(alpha - 1));
        }
        for (const float factor : {1.001f, 1.5f, 0.7f, 0.01f, -1.0f, 0.0f, 1e9f, kInfinity,
                                   std::numeric_limits<float>::quiet_NaN()}) {
          CAPTURE(factor);
          std::vector<float> predicted = peaks;
          for (size_t row = 0; row < predicted.size(); ++row) predicted[row] *= row % 3 == 2 ? 1 : factor;
          const auto led = screened_forward(spec, in.q, in.k, in.v, true, predicted);
          CHECK(led.probabilities.columns == plain.probabilities.columns);
          CHECK(led.support == plain.support);
          double worst = 0;
          for (size_t row = 0; row < peaks.size(); ++row)
            worst = std::max(worst, std::abs(led.tau[row] - plain.tau[row]));
          CHECK(worst < 1e-6);
          CHECK(nmse(led.out, plain.out.cast<double>()) < 1e-12);
          if (factor == 1.001f) CHECK(led.listed <= plain.listed);
          if (factor == 0.01f && k_keep == 0 && kind == WorkloadKind::gaussian) CHECK(led.misled_rows > 0);
        }
      }
    }
  }
}

TEST_CASE("results are the same to the bit for any number of threads") {
  AttentionSpec spec{.shape = {.q_heads = 3, .kv_heads = 1, .q_len = 333, .kv_len = 333, .head_dim = 40}};
  const auto in = make_inputs<float>({}, spec.shape);
  omp_set_num_threads(1);
  const auto one = screened_forward(spec, in.q, in.k, in.v, true);
  const auto one_grad = screened_backward(spec, one, in.q, in.k, in.v, in.q);
  omp_set_num_threads(3);
  const auto three = screened_forward(spec, in.q, in.k, in.v, true);
  const auto three_grad = screened_backward(spec, three, in.q, in.k, in.v, in.q);
  omp_set_num_threads(2);
  CHECK(one.out.matrix(0, 2) == three.out.matrix(0, 2));
  CHECK(one.probabilities.columns == three.probabilities.columns);
  CHECK(one_grad.dk.matrix(0, 0) == three_grad.dk.matrix(0, 0));
  CHECK(one_grad.dv.matrix(0, 0) == three_grad.dv.matrix(0, 0));
  CHECK(one_grad.dq.matrix(0, 1) == three_grad.dq.matrix(0, 1));
}

TEST_CASE("what is not served is refused with what would serve it") {
  AttentionSpec spec{.shape = {.q_len = 4, .kv_len = 4, .head_dim = 8}};
  const auto in = make_inputs<float>({}, spec.shape);
  auto other = spec;
  other.normalizer.kind = NormalizerKind::softmax;
  CHECK_THROWS_AS(screened_forward(other, in.q, in.k, in.v), Unsupported);
  other = spec;
  other.selection.kind = SelectionKind::top_k_block;
  CHECK_THROWS_AS(screened_forward(other, in.q, in.k, in.v), Unsupported);
  other = spec;
  other.shape.kv_len = 5;
  CHECK_THROWS_AS(screened_forward(other, in.q, in.k, in.v), InvalidArgument);
  const auto forward = screened_forward(spec, in.q, in.k, in.v, false);
  CHECK_THROWS_AS(screened_backward(spec, forward, in.q, in.k, in.v, in.q), InvalidArgument);
  const std::vector<float> three(3, 0.5f);
  CHECK_THROWS_AS(screened_forward(spec, in.q, in.k, in.v, false, three), InvalidArgument);
}
