#pragma once
// Problems for the portable path, drawn such that all features meet, and the checks of its results.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/workload.h"
#include "cpu_ref/attention/given_threshold.h"
#include "gpu/tests/entmax_forward_run.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/nmse.h"

namespace splash::gpu::testing {

struct PortableCase {
  std::string name;
  AttentionSpec spec{};
  Dtype dtype = Dtype::f32;
  AttentionInputs<double> inputs{};   // rounded to dtype
  std::vector<double> tau_offsets{};  // of given thresholds, exact in float
};

// Rows whose k-th and next largest scores differ, but by so little that float may order them differently from
// double. Which of the two is kept then says nothing.
inline std::vector<char> unclear_rows(const AttentionSpec& spec, const AttentionInputs<double>& inputs) {
  const AttentionShape& s = spec.shape;
  std::vector<char> unclear(static_cast<size_t>(s.rows()), 0);
  if (spec.selection.kind != SelectionKind::top_k_row) return unclear;
  for (int64_t row = 0; row < s.rows(); ++row) {
    const int64_t b = row / s.q_len / s.q_heads, h = row / s.q_len % s.q_heads, i = row % s.q_len;
    const int64_t k = spec.selection.k_keep_of(h);
    if (k >= s.kv_len) continue;
    const RowMask mask = spec.mask.row(s, b, h, i);
    const double* const q = inputs.q.row(b, h, i);
    std::vector<double> scores;
    double largest = 0;
    bool poisoned = false;
    for (int64_t j = mask.begin; j < mask.end; ++j) {
      if (!mask.visible(j)) continue;
      const double* const key = inputs.k.row(b, s.kv_head_of(h), j);
      const double score = spec.capped(spec.score_scale() * std::inner_product(q, q + s.head_dim, key, 0.0)) +
                           spec.bias.of(s, h, i, j);
      poisoned |= !(score < std::numeric_limits<double>::infinity());
      if (!std::isfinite(score)) continue;
      scores.push_back(score);
      largest = std::max(largest, std::abs(score));
    }
    if (poisoned || static_cast<int64_t>(scores.size()) <= k) continue;
    std::nth_element(scores.begin(), scores.begin() + k, scores.end(), std::greater<>());
    const double gap = *std::min_element(scores.begin(), scores.begin() + k) - scores[static_cast<size_t>(k)];
    unclear[static_cast<size_t>(row)] = gap > 0 && gap <= 4e-6 * largest;
  }
  return unclear;
}

// The nmse of the output that errors of float scores cause, to first order (MATH: Gradients): row i changes
// by the sum of u_j (v_j - mean_u v) ds_j, where v is 0 of dropped keys and of the sink, whose u counts. A
// row with one key and no sink loses nothing. Scores of 1e4 that are close together lose what float cannot
// represent, in whatever order they are added.
inline double loss_of_scores(const PortableCase& c, const cpu_ref::ForwardResult<double>& oracle,
                             const std::vector<char>& left_out) {
  const AttentionShape& s = c.spec.shape;
  const auto& p = *oracle.probabilities;
  const double dz = 1e-6 * largest_tau(oracle);  // score_error's bound is never met by all scores at once
  double error = 0, norm = 1e-30;
  std::vector<double> mean(static_cast<size_t>(s.head_dim));
  for (int64_t row = 0; row < s.rows(); ++row) {
    if (left_out[static_cast<size_t>(row)] != 0) continue;
    const int64_t b = row / s.q_len / s.q_heads, h = row / s.q_len % s.q_heads;
    const double alpha = c.spec.normalizer.alpha_of(h);
    const DropoutRow dropout(c.spec.dropout, row);
    const std::vector<double> dropped(static_cast<size_t>(s.head_dim), 0.0);
    const auto each = [&](const auto& use) {
      for (int64_t i = p.row_offsets[row]; i < p.row_offsets[row + 1]; ++i) {
        const double* const value = c.inputs.v.row(b, s.kv_head_of(h), p.columns[i]);
        use(std::pow(p.values[i], 2 - alpha), dropout.keeps(p.columns[i]) ? value : dropped.data());
      }
    };
    double of_row = 0, sum = 0;
    std::fill(mean.begin(), mean.end(), 0.0);
    if (!c.spec.sinks.empty()) {
      const auto begin = p.values.begin();
      const double of_keys = std::accumulate(begin + p.row_offsets[row], begin + p.row_offsets[row + 1], 0.0);
      sum = of_keys < 1 - 1e-12 ? std::pow(1 - of_keys, 2 - alpha) : 0;
    }
    each([&](double u, const double* value) {
      sum += u;
      for (int64_t d = 0; d < s.head_dim; ++d) mean[static_cast<size_t>(d)] += u * value[d];
    });
    each([&](double u, const double* value) {
      for (int64_t d = 0; d < s.head_dim; ++d) {
        const double change = u * (value[d] - mean[static_cast<size_t>(d)] / sum) * dz / (alpha - 1);
        of_row += change * change;
      }
    });
    if (std::isfinite(of_row)) error += of_row;
    const double* const out = oracle.out.data() + row * s.head_dim;
    const double of_out = std::inner_product(out, out + s.head_dim, out, 0.0);
    if (std::isfinite(of_out)) norm += of_out;
  }
  const double factor = 1 / (1 - c.spec.dropout.rate);
  return error * factor * factor / norm;
}

// Checks tau, and z - tau of each entry, of rows with given thresholds. Their p, which are powers of z - tau,
// do not sum to 1.
inline void check_given_rows(const PortableCase& c, const RowResults& results,
                             const cpu_ref::ForwardResult<double>& oracle,
                             const std::vector<char>& left_out) {
  const AttentionShape& s = c.spec.shape;
  const auto& p = *oracle.probabilities;
  const double error = 2 * score_error(oracle);
  int64_t wrong_tau = 0, wrong_entries = 0;
  for (int64_t row = 0; row < s.rows(); ++row) {
    const double tau = results.tau[row], expected_tau = oracle.tau[row];
    if (left_out[row] != 0) continue;
    if (!std::isfinite(expected_tau)) {
      wrong_tau += std::isnan(expected_tau) != std::isnan(tau) || std::isfinite(tau);
      wrong_entries += results.counts[row] != 0;
      continue;
    }
    wrong_tau += !(std::abs(tau - expected_tau) <= error);
    const double alpha = c.spec.normalizer.alpha_of(row / s.q_len % s.q_heads),
                 shift = cpu_ref::shift_of_offset(c.tau_offsets[row], alpha, s.kv_len);
    double largest = 0;
    std::map<int32_t, double> expected;
    for (int64_t i = p.row_offsets[row]; i < p.row_offsets[row + 1]; ++i)
      largest = std::max(largest, p.values[i]);
    for (int64_t i = p.row_offsets[row]; i < p.row_offsets[row + 1]; ++i)
      expected[p.columns[i]] = shift * std::pow(p.values[i] / largest, alpha - 1);
    for (int64_t i = results.offsets[row]; i < results.offsets[row] + results.counts[row]; ++i) {
      const auto at = expected.find(results.columns[i]);
      const double u = at == expected.end() ? 0 : at->second;
      wrong_entries += !(results.excess[i] > 0) || !(std::abs(results.excess[i] - u) <= error);
      if (at != expected.end()) expected.erase(at);
    }
    for (const auto& [key, u] : expected) wrong_entries += u > error;  // missing entries
  }
  CHECK(wrong_tau == 0);
  CHECK(wrong_entries == 0);
}

// What the double oracle makes of a case: it takes longer than the kernels, so that runs share it.
struct Expected {
  cpu_ref::ForwardResult<double> oracle;
  std::vector<char> left_out;  // rows that are not looked at
  double nmse = 0;             // of the output, at most

  explicit Expected(const PortableCase& c, const std::vector<char>& also_left_out = {})
      : oracle(
            cpu_ref::attention_forward<double>(c.spec, c.inputs.q, c.inputs.k, c.inputs.v,
                                               {.keep_probabilities = true, .tau_offsets = c.tau_offsets})),
        left_out(unclear_rows(c.spec, c.inputs)) {
    for (size_t row = 0; row < also_left_out.size(); ++row) left_out[row] |= also_left_out[row];
    nmse = std::max(Tolerance().of(c.dtype), loss_of_scores(c, oracle, left_out));
  }
};

// Checks output, tau and support of a run of the case.
inline void check_against(const Expected& expected, const PortableCase& c, const Tensor<double>& out,
                          const RowResults& rows) {
  CAPTURE(c.name);
  CHECK(nmse_or_inf(out, expected.oracle.out, expected.left_out, 1e-30) <= expected.nmse);
  if (c.tau_offsets.empty()) {
    check_rows(c.spec, rows, expected.oracle, score_error(expected.oracle), expected.left_out);
  } else {
    check_given_rows(c, rows, expected.oracle, expected.left_out);
  }
}

inline void check_against_oracle(const PortableCase& c, const Tensor<double>& out, const RowResults& rows,
                                 const std::vector<char>& also_left_out = {}) {
  check_against(Expected(c, also_left_out), c, out, rows);
}

class CaseDrawer {
 public:
  explicit CaseDrawer(uint64_t seed) : random_(seed) {}

  template <class T>
  T any_of(std::initializer_list<T> list) {
    return *(list.begin() + random_() % list.size());
  }

  PortableCase draw() {
    PortableCase c;
    c.dtype = any_of({Dtype::bf16, Dtype::f16, Dtype::f32});
    draw_shape(c, any_of<int64_t>({1, 5, 63, 64, 65, 130, 257, 400, 700}),
               {1.5F, 1.5F, 2.0F, 1.25F, 1.75F, 1.1F, 1.02F});
    draw_mask(c);
    if (random_() % 2 == 0) {
      c.spec.selection = {.kind = SelectionKind::top_k_row,
                          .k_keep = any_of<int64_t>({1, 2, 8, 20, 60, 130, 300, 5000})};
      c.name += "k_keep " + std::to_string(c.spec.selection.k_keep) + ", ";
    }
    const uint64_t kind = random_() % 12;
    draw_inputs(c, kind);
    draw_modifications(c, kind);
    return c;
  }

  // A case with given thresholds, some of them NaN or beyond the bracket, and in half of the cases a k_keep
  // per head.
  PortableCase draw_given() {
    PortableCase c = draw();
    c.spec.sinks.clear();
    std::uniform_real_distribution<float> offset(-1.05F, 0.05F);
    for (int64_t row = 0; row < c.spec.shape.rows(); ++row)
      c.tau_offsets.push_back(
          static_cast<double>(random_() % 20 == 0 ? NAN : -std::pow(std::abs(offset(random_)), 0.3F)));
    c.name += ", given thresholds";
    if (random_() % 2 == 0) draw_head_k_keep(c);
    return c;
  }
  void draw_head_k_keep(PortableCase& c) {
    c.spec.selection = {.kind = SelectionKind::top_k_row};
    for (int64_t head = 0; head < c.spec.shape.q_heads; ++head)
      c.spec.selection.head_k_keep.push_back(any_of<int64_t>({0, 1, 8, 60, 300, 5000}));
    c.name += ", a k_keep a head";
  }

  // A case that Hopper's path takes: 16-bit elements, causal or full, all keys; up to 23 or 46 tiles of keys.
  PortableCase draw_for_one_pass() { return causal_or_full(draw_16_bits()); }
  // The same, of up to eight tiles of keys.
  PortableCase draw_few_keys() {
    return causal_or_full(draw_16_bits({1, 5, 33, 63, 64, 65, 100, 128, 197, 256, 300, 512}));
  }
  // The same, whose rows see ranges of keys.
  PortableCase draw_ranges() {
    PortableCase c = draw_16_bits();
    c.spec.mask.causal = random_() % 3 != 0;
    const bool windowed = c.spec.mask.causal || random_() % 2 == 0;
    if (windowed) draw_window(c, any_of<int64_t>({1, 7, 63, 64, 65, 127, 128, 129, 300, 600, 1024, 5000}));
    if (!windowed || random_() % 3 == 0) draw_sequences(c);
    draw_inputs(c, random_() % 24);
    return c;
  }

 private:
  PortableCase draw_16_bits(std::initializer_list<int64_t> lengths = {1, 65, 257, 700, 1700, 1700, 2900,
                                                                      2900}) {
    PortableCase c;
    c.dtype = any_of({Dtype::bf16, Dtype::f16});
    draw_shape(c, any_of(lengths), {1.5F, 1.5F, 2.0F, 1.75F, 1.25F});
    return c;
  }
  PortableCase causal_or_full(PortableCase c) {
    c.spec.mask.causal = random_() % 2 == 0;
    if (c.spec.mask.causal) c.name += "causal, ";
    draw_inputs(c, random_() % 24);
    return c;
  }

  void draw_shape(PortableCase& c, int64_t kv_len, std::initializer_list<float> alphas_to_draw) {
    const int64_t kv_heads = any_of<int64_t>({1, 1, 2}), group = any_of<int64_t>({1, 1, 2});
    AttentionShape& s = c.spec.shape;
    s = {any_of<int64_t>({1, 1, 2}),
         kv_heads * group,
         kv_heads,
         any_of<int64_t>({1, 7, 33, 64, 65, 100, 131}),
         kv_len,
         any_of<int64_t>({8, 24, 32, 40, 64, 64, 72, 96, 128, 136, 192, 256})};
    const int64_t alphas = random_() % 4 == 0 ? s.q_heads : 1;
    c.spec.normalizer.alpha.clear();
    for (int64_t head = 0; head < alphas; ++head)  // exact in float, as the device's alphas are float
      c.spec.normalizer.alpha.push_back(static_cast<double>(any_of(alphas_to_draw)));
  }

  static void draw_window(PortableCase& c, int64_t window) {
    c.spec.mask.window = window;
    if (c.spec.mask.causal) c.name += "causal, ";
    if (window > 0) c.name += "window " + std::to_string(window) + ", ";
  }

  void draw_sequences(PortableCase& c) {
    const auto sequences = 1 + random_() % 5;
    const auto cuts = [&](int64_t length) {  // some sequences are empty
      std::vector<int64_t> at{0, length};
      for (uint64_t i = 1; i < sequences; ++i)
        at.push_back(static_cast<int64_t>(random_() % static_cast<uint64_t>(length + 1)));
      std::sort(at.begin(), at.end());
      return at;
    };
    c.spec.mask.cu_seqlens_q = cuts(c.spec.shape.q_len);
    c.spec.mask.cu_seqlens_k = cuts(c.spec.shape.kv_len);
    c.name += "packed, ";
  }

  void draw_mask(PortableCase& c) {
    const AttentionShape& s = c.spec.shape;
    Mask& mask = c.spec.mask;
    const auto parts = random_() % 8;
    if ((parts & 1) != 0) {
      mask.causal = random_() % 3 != 0;
      draw_window(c, any_of<int64_t>({0, 0, 1, 3, 64, 100, 5000}));
    }
    if ((parts & 2) != 0) draw_sequences(c);
    if (random_() % 4 == 0) draw_pairs(c);
    if ((parts & 4) == 0) return;
    const int64_t far = random_() % 4 == 0 ? int64_t{1} << 40 : 0;
    const auto positions = [&](int64_t length) {
      std::vector<int64_t> of_all(
          static_cast<size_t>(length * any_of<int64_t>({1, s.batch, s.batch * s.q_heads})));
      for (int64_t& x : of_all)
        x = far + static_cast<int64_t>(random_() % static_cast<uint64_t>(s.kv_len + 2)) - 1;
      return of_all;
    };
    mask.q_positions = positions(s.q_len);
    mask.k_positions = positions(s.kv_len);
    c.name += "positions, ";
  }

  // Tiles of 48 rows and 64 keys that are empty, whole or mixed.
  void draw_pairs(PortableCase& c) {
    const AttentionShape& s = c.spec.shape;
    const int64_t tables = any_of<int64_t>({1, s.batch, s.batch * s.q_heads}), words = pair_words(s.kv_len);
    std::vector<uint64_t> kinds(static_cast<size_t>(words));
    for (int64_t row = 0; row < tables * s.q_len; ++row) {
      if (row % 48 == 0) std::generate(kinds.begin(), kinds.end(), [&] { return random_() % 4; });
      for (int64_t word = 0; word < words; ++word) {
        const uint64_t kind = kinds[static_cast<size_t>(word)];
        const uint64_t bits = kind < 2 ? 0 : kind == 2 ? ~uint64_t{0} : random_() & random_();
        c.spec.mask.pairs.push_back(
            bits & pair_bits(nullptr, 0, std::min(kKeysAWord, s.kv_len - word * kKeysAWord)));
      }
    }
    c.name += "pairs, ";
  }

  // Not for inputs whose scores are so large that float knows nothing of them below the cap, or infinite.
  void draw_modifications(PortableCase& c, uint64_t kind) {
    const bool finite = kind != 2 && kind != 6 && kind != 7 && kind != 9;
    if (finite && random_() % 3 == 0) {
      c.spec.softcap = any_of({1.0, 6.0, 50.0});
      c.name += ", soft cap " + std::to_string(c.spec.softcap);
    }
    if (finite && random_() % 3 == 0) {
      for (int64_t head = 0; head < c.spec.shape.q_heads; ++head)
        c.spec.sinks.push_back(any_of({-30.0, -1.0, 0.5, 3.0, -std::numeric_limits<double>::infinity()}));
      c.name += ", sinks";
    }
    if (random_() % 3 == 0) {
      c.spec.dropout = {.rate = any_of({0.1, 0.5}), .seed = random_()};
      c.name += ", dropout " + std::to_string(c.spec.dropout.rate);
    }
    if (finite && random_() % 3 == 0 && c.spec.mask.cu_seqlens_q == c.spec.mask.cu_seqlens_k) {
      c.spec.bias = draw_bias(random_, c.spec.shape.q_heads, any_of<int64_t>({1, 2, 30, 64, 300}),
                              any_of<int64_t>({-400, -130, -20, 0, 5}));
      c.name += ", bias";
    }
  }

  // kind: an index into kNames; larger values leave the inputs ordinary.
  void draw_inputs(PortableCase& c, uint64_t kind) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    Workload workload{.seed = random_(), .query_variance = any_of({1.0, 6.0, 25.0})};
    static constexpr const char* kNames[] = {"ties",     "sink",      "huge logits", "near-dense",
                                             "uniform",  "broad",     "some -inf",   "all -inf",
                                             "NaN in q", "+inf in q", "NaN in k",    "equal keys"};
    c.name += kind < std::size(kNames) ? kNames[kind] : "random";
    if (kind == 0) workload.kind = WorkloadKind::ties;
    if (kind == 1) workload.kind = WorkloadKind::sink;
    if (kind == 2) workload.query_variance = 1e8;
    if (kind == 3) workload.query_variance = 0.01;
    if (kind == 4) workload.query_variance = 1e-6;
    if (kind == 5) workload.query_variance = 0.3;
    c.inputs = make_inputs<double>(workload, c.spec.shape);
    Tensor<double>&q = c.inputs.q, &k = c.inputs.k, &v = c.inputs.v;
    const int64_t dim = q.dim();
    const auto first_elements = [dim](Tensor<double>& tensor, const auto& use) {
      for (int64_t i = 0; i < tensor.size() / dim; ++i) use(tensor.data() + i * dim, i);
    };
    if (kind == 6 || kind == 7 || kind == 9) first_elements(q, [](double* x, int64_t) { *x = 1; });
    if (kind == 6) {  // keys without weight, whose values must not show in the output
      first_elements(k, [&](double* x, int64_t i) { *x = i % 7 == 3 ? -kInf : *x; });
      first_elements(v, [&](double* x, int64_t i) { *x = i % 7 == 3 ? kNan : *x; });
    }
    if (kind == 7) first_elements(k, [&](double* x, int64_t) { *x = -kInf; });
    if (kind == 8) q.row(0, 0, q.length() / 2)[1] = kNan;
    if (kind == 9) {
      double* const row = q.row(0, 0, q.length() / 3);
      std::fill(row, row + dim, 0.0);
      *row = kInf;
      first_elements(k, [](double* x, int64_t) { *x = 1; });
    }
    if (kind == 10) k.row(0, 0, k.length() / 2)[3] = kNan;
    if (kind == 11) first_elements(k, [&](double* x, int64_t) { std::copy_n(k.data(), dim, x); });
    round_inputs(c.inputs, c.dtype);
    c.name += ", " + to_string(c.spec.shape) + ", " + std::string(to_string(c.dtype)) + ", alpha " +
              std::to_string(c.spec.normalizer.alpha.front());
  }

  std::mt19937_64 random_;
};

}  // namespace splash::gpu::testing
