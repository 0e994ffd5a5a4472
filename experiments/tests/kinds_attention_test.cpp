// Tests attention-accuracy, power-approximation, workload and attention-map against dense computations that
// are written out here.

#include <algorithm>
#include <numeric>

#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/attention/forward.h"
#include "cpu_ref/entmax/solver.h"
#include "experiments/kinds/support/reference.h"
#include "experiments/tests/kinds_helpers.h"

namespace splash::experiments::tests {
namespace {

using doctest::Approx;
using Rows = std::vector<std::vector<double>>;

Rows entmax_rows(const Rows& scores, double alpha) {
  Rows p;
  for (const auto& row : scores) p.push_back(cpu_ref::entmax(row, alpha).probabilities);
  return p;
}

// Entmax over the k largest scores of each block of `block` keys.
Rows selected_rows(const Rows& scores, double alpha, size_t k, size_t block) {
  Rows p;
  for (const auto& row : scores) {
    std::vector<double> kept(row.size(), -INFINITY);
    for (size_t begin = 0; begin < row.size(); begin += block) {
      std::vector<size_t> keys(std::min(block, row.size() - begin));
      std::iota(keys.begin(), keys.end(), begin);
      std::ranges::stable_sort(keys, [&](size_t a, size_t b) { return row[a] > row[b]; });
      for (size_t i = 0; i < std::min(k, keys.size()); ++i) kept[keys[i]] = row[keys[i]];
    }
    p.push_back(cpu_ref::entmax(kept, alpha).probabilities);
  }
  return p;
}

Rows softmax_rows(const Rows& scores) {
  Rows p = scores;
  for (auto& row : p) {
    double sum = 0;
    for (double& s : row) sum += s = std::exp(s);
    for (double& s : row) s /= sum;
  }
  return p;
}

}  // namespace

TEST_CASE("attention-accuracy gives what dense attention gives") {
  const double alpha = 1.5;
  const auto inputs = load_inputs(parameters_of("attention-accuracy", small_head()));
  const Rows scores = score_rows_of(*inputs);
  const Rows exact = entmax_rows(scores, alpha);
  struct Case {
    std::string scope;
    int64_t k_keep, block;
    size_t group;
  };
  for (const Case& c : {Case{"row", 3, 64, 1000}, Case{"block", 2, 16, 16}, Case{"all", 4, 64, 1000}}) {
    CAPTURE(c.scope);
    const auto result =
        run_kind("attention-accuracy",
                 with(small_head(), {{"scope", c.scope}, {"k_keep", c.k_keep}, {"block", c.block}}));
    const Rows p = c.scope == "all" ? exact : selected_rows(scores, alpha, c.k_keep, c.group);
    const auto out = outputs_of(p, inputs->v);
    const auto mse = mean_square(out, outputs_of(exact, inputs->v));
    CHECK(result.numbers.at("mse_vs_entmax") == Approx(mse).epsilon(1e-9));
    CHECK(result.numbers.at("mse_vs_softmax") ==
          Approx(mean_square(out, outputs_of(softmax_rows(scores), inputs->v))).epsilon(1e-9));

    double nonzero = 0, mass = 0, support_recall = 0, top_recall = 0, pairs = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      double kept = 0, support = 0;
      std::vector<size_t> order(p[i].size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[i][a] > scores[i][b]; });
      // Finds the selection itself: alpha near 1 gives every selected key a probability.
      const Rows selection = c.scope == "all" ? Rows{std::vector<double>(p[i].size(), 1.0)}
                                              : selected_rows({scores[i]}, 1.01, c.k_keep, c.group);
      for (size_t j = 0; j < p[i].size(); ++j) {
        nonzero += p[i][j] > 0;
        support += exact[i][j] > 0;
        kept += exact[i][j] > 0 && selection[0][j] > 0;
        mass += selection[0][j] > 0 ? exact[i][j] : 0;
        pairs += 1;
      }
      support_recall += kept / support;
      for (int64_t t = 0; t < c.k_keep; ++t)
        top_recall += (p[i][order[t]] > 0) / static_cast<double>(c.k_keep);
    }
    const auto rows = static_cast<double>(p.size());
    CHECK(result.numbers.at("token_sparsity") == Approx(1 - nonzero / pairs));
    CHECK(result.numbers.at("support_mean") == Approx(nonzero / rows));
    CHECK(result.numbers.at("support_recall") == Approx(support_recall / rows));
    CHECK(result.numbers.at("mass_kept") == Approx(mass / rows));
    CHECK(result.numbers.at("top_k_recall") == Approx(top_recall / rows));
    CHECK(result.numbers.at("visible_pairs") == pairs);
  }
}

TEST_CASE("every declared column is filled, and nothing else") {
  const std::vector<std::pair<std::string, Parameters>> cases{{"attention-accuracy", small_head()},
                                                              {"power-approximation", small_head()},
                                                              {"workload", small_head()},
                                                              {"tile-bounds", small_head()},
                                                              {"attention-map", small_head()},
                                                              {"gradient", small_head()},
                                                              {"entmax-solver", {{"n", int64_t{64}}}},
                                                              {"learned-threshold", {{"steps", int64_t{5}}}}};
  for (const auto& entry : cases) {
    const std::string& kind = entry.first;
    CAPTURE(kind);
    const auto result = run_kind(kind, entry.second);
    size_t filled = 0;
    for (const auto& column : find_kind(kind).columns()) {
      CAPTURE(column.name);
      const bool found = column.dimension.empty() ? result.numbers.contains(column.name)
                                                  : result.vectors.contains(column.name);
      CHECK((found || !column.missing_reason.empty()));
      CHECK(!column.units.empty());
      CHECK(!column.long_name.empty());
      CHECK(!column.formula.empty());
      filled += found;
    }
    CHECK(filled == result.numbers.size() + result.vectors.size());
  }
}

TEST_CASE("power-approximation gives what its formula gives") {
  const auto inputs = load_inputs(parameters_of("power-approximation", small_head()));
  const Rows scores = score_rows_of(*inputs);
  const Rows exact = entmax_rows(scores, 1.5);
  for (const bool normalized : {true, false}) {
    Rows p = scores;
    double distance = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      double sum = 0, common = 0;
      for (double& s : p[i]) sum += s = std::pow(std::max(s, 0.0), 1.5);
      if (normalized && sum > 0) std::ranges::for_each(p[i], [&](double& w) { w /= sum; });
      for (size_t j = 0; j < p[i].size(); ++j) common += std::min(p[i][j], exact[i][j]);
      distance += 1 - common;
    }
    const auto result = run_kind("power-approximation", with(small_head(), {{"normalized", normalized}}));
    CHECK(result.numbers.at("mse_vs_entmax") ==
          Approx(mean_square(outputs_of(p, inputs->v), outputs_of(exact, inputs->v))).epsilon(1e-9));
    CHECK(result.numbers.contains("total_variation") == normalized);
    if (normalized)
      CHECK(result.numbers.at("total_variation") == Approx(distance / static_cast<double>(p.size())));
  }
}

TEST_CASE("workload counts the supports and tiles of the plain reference") {
  for (const bool causal : {false, true}) {
    const Parameters head = with(small_head(200), {{"causal", causal}});
    const auto result = run_kind("workload", head);
    const auto exact = exact_entmax(parameters_of("workload", head));
    double support = 0;
    for (const int64_t size : exact->support) support += static_cast<double>(size);
    CHECK(result.numbers.at("support_mean") == Approx(support / 200));
    const auto active = static_cast<double>(exact->blocks.count(cpu_ref::BlockMap::active));
    const auto visible = active + static_cast<double>(exact->blocks.count(cpu_ref::BlockMap::inactive));
    CHECK(result.numbers.at("block_density_64") == Approx(active / visible));
    CHECK(result.numbers.at("visible_pairs") == (causal ? 200 * 201 / 2 : 200 * 200));
  }
}

TEST_CASE("tile-bounds rules out no tile with support, and what its bounds say") {
  for (const std::string input : {"gaussian", "clustered", "local", "ties"}) {
    for (const std::string order : {"position", "norm", "split"}) {
      CAPTURE(input);
      CAPTURE(order);
      const auto result =
          run_kind("tile-bounds", with(small_head(600), {{"input", input}, {"order", order}}));
      for (const std::string bound : {"norm", "centre", "box"}) {
        CHECK(result.numbers.at(bound + "_tiles") <= result.numbers.at("empty_tiles"));
        CHECK(result.numbers.at(bound + "_rows") <= result.numbers.at("empty_rows"));
        CHECK(result.numbers.at(bound + "_tiles") <= result.numbers.at(bound + "_rows") + 1e-12);
      }
    }
  }
  const auto clusters =
      run_kind("tile-bounds",
               with(small_head(600), {{"input", std::string("clustered")}, {"order", std::string("split")}}));
  for (const std::string bound : {"norm", "centre", "box"}) CHECK(clusters.numbers.at(bound + "_rows") > 0);
  // Two rows of tiles, written out: 100 keys, of which query i sees the first i + 1.
  const Parameters head =
      with(small_head(100), {{"causal", true}, {"input", std::string("sink")}, {"alpha", 2.0}});
  const auto result = run_kind("tile-bounds", head);
  const auto inputs = load_inputs(parameters_of("tile-bounds", head));
  const auto exact = exact_entmax(parameters_of("tile-bounds", head));
  double empty = 0, by_norm = 0, by_box = 0;
  for (int64_t query = 0; query < 100; ++query) {
    const double* const q = inputs->q.row(0, 0, query);
    for (const int64_t first : {0, 64}) {
      if (first > query) continue;
      double most = 0, box = 0, norm = 0, support = 0;
      for (int64_t c = 0; c < 8; ++c) {
        double best = -INFINITY;
        for (int64_t key = first; key < std::min<int64_t>(first + 64, 100); ++key)
          best = std::max(best, q[c] * inputs->k.row(0, 0, key)[c]);
        box += best;
        norm += q[c] * q[c];
      }
      for (int64_t key = first; key < std::min<int64_t>(first + 64, 100); ++key) {
        double square = 0;
        for (int64_t c = 0; c < 8; ++c) square += inputs->k.row(0, 0, key)[c] * inputs->k.row(0, 0, key)[c];
        most = std::max(most, square);
      }
      for (int64_t i = exact->probabilities->row_offsets[query];
           i < exact->probabilities->row_offsets[query + 1]; ++i)
        support += exact->probabilities->columns[i] / 64 == first / 64 ? 1 : 0;
      const double scale = 1 / std::sqrt(8.0);  // alpha - 1 = 1
      empty += support == 0 ? 1 : 0;
      by_norm += scale * std::sqrt(norm * most) < exact->tau[query] ? 1 : 0;
      by_box += scale * box < exact->tau[query] ? 1 : 0;
    }
  }
  CHECK(empty > 0);
  CHECK(by_box > 0);
  CHECK(result.numbers.at("empty_rows") == Approx(empty / 136));
  CHECK(result.numbers.at("norm_rows") == Approx(by_norm / 136));
  CHECK(result.numbers.at("box_rows") == Approx(by_box / 136));
  CHECK_THROWS_AS(parameters_of("tile-bounds", with(head, {{"order", std::string("norm")}})),
                  InvalidArgument);
}

TEST_CASE("attention-map shows the first tokens' probabilities") {
  const auto result =
      run_kind("attention-map", {{"layer", int64_t{2}}, {"head", int64_t{5}}, {"tokens", int64_t{12}}});
  REQUIRE(result.attachments.size() == 3);
  for (const auto& map : result.attachments) {
    CAPTURE(map.name);
    CHECK(map.extents == std::vector<int64_t>{12, 12});
    CHECK(map.numbers.size() == 144);
    CHECK(map.labels.at("key").size() == 12);
    for (int row = 0; row < 12; ++row) {
      const double sum =
          std::accumulate(map.numbers.begin() + row * 12, map.numbers.begin() + row * 12 + 12, 0.0);
      CHECK(sum <= 1 + 1e-9);
    }
  }
  CHECK(result.numbers.at("support_softmax") == 512);
  CHECK(result.numbers.at("support_k_keep") <= 8);
}

TEST_CASE("values that do not fit together are refused before anything runs") {
  CHECK_THROWS_AS(parameters_of("attention-accuracy", {{"alpha", 1.0}}), InvalidArgument);
  CHECK_THROWS_AS(parameters_of("attention-accuracy", {{"k_keep", int64_t{0}}}), InvalidArgument);
  CHECK_THROWS_AS(parameters_of("attention-accuracy", {{"layer", int64_t{6}}}), InvalidArgument);
  CHECK_THROWS_AS(parameters_of("attention-accuracy", {{"head", int64_t{-1}}}), InvalidArgument);
  CHECK_THROWS_AS(parameters_of("entmax-solver", {{"solver", std::string("sorting")}, {"alpha", 1.25}}),
                  InvalidArgument);
  CHECK_THROWS_AS(parameters_of("entmax-solver", {{"rows", int64_t{0}}}), InvalidArgument);
  CHECK_THROWS_AS(parameters_of("learned-threshold", {{"alpha", 2.5}}), InvalidArgument);
  CHECK_THROWS_AS(parameters_of("learned-threshold", {{"input", std::string("gaussian")}}), InvalidArgument);
  CHECK_THROWS_AS(parameters_of("workload", with(small_head(), {{"query_variance", -1.0}})), InvalidArgument);
}

}  // namespace splash::experiments::tests
