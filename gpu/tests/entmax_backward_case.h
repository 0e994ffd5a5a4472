#pragma once
// Problems for backward, with their supports, on the host and on the device.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "core/workload.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/forward.h"
#include "cpu_ref/attention/given_threshold.h"
#include "gpu/engine/tensor.h"
#include "gpu/engine/variant.h"
#include "gpu/entmax/backward/backward.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/nmse.h"

namespace splash::gpu::testing {

using entmax::Support;

using Gradients = cpu_ref::Gradients<double>;

// A support stored row after row. A row's excess need not give p with sum 1.
struct HostSupport {
  std::vector<int64_t> first{0};  // [rows + 1]
  std::vector<int32_t> columns;
  std::vector<float> excess;

  int64_t rows() const { return static_cast<int64_t>(first.size()) - 1; }
  int64_t count(int64_t row) const { return first[row + 1] - first[row]; }
  void end_row() { first.push_back(static_cast<int64_t>(columns.size())); }
  void add(int64_t column, float x) {
    columns.push_back(static_cast<int32_t>(column));
    excess.push_back(x);
  }
  // The same support with the rows that are not kept empty.
  HostSupport only(const std::function<bool(int64_t row)>& kept) const {
    HostSupport part;
    for (int64_t row = 0; row < rows(); ++row) {
      for (int64_t i = first[row]; kept(row) && i < first[row + 1]; ++i) part.add(columns[i], excess[i]);
      part.end_row();
    }
    return part;
  }
};

inline AttentionSpec entmax_spec(const AttentionShape& shape, double alpha, bool causal = false) {
  AttentionSpec spec;
  spec.shape = shape;
  spec.normalizer.alpha = {alpha};
  spec.mask.causal = causal;
  return spec;
}

// 1.2, 1.3, ..., exact in float; one per head.
inline std::vector<double> alphas_a_head(int64_t heads) {
  std::vector<double> alphas;
  for (int64_t h = 0; h < heads; ++h)
    alphas.push_back(static_cast<double>(1.2F + 0.1F * static_cast<float>(h)));
  return alphas;
}

struct Case {
  AttentionSpec spec{};
  Dtype dtype = Dtype::f32;
  AttentionInputs<double> inputs{};  // rounded to dtype
  Tensor<double> d_out{};
  HostSupport support{};
  std::vector<double> tau_offsets{};  // of given thresholds, exact in float
  // With a cap of scores or sinks: the support's z are tau + excess; exact in float.
  std::vector<double> tau{};
};

inline Case make_case(const AttentionSpec& spec, Dtype dtype, Workload workload = {}) {
  Case c{.spec = spec, .dtype = dtype};
  workload.seed = test_seed();
  c.inputs = make_inputs<double>(workload, spec.shape);
  const AttentionShape& s = spec.shape;
  c.d_out = Tensor<double>(s.batch, s.q_heads, s.q_len, s.head_dim);
  std::mt19937_64 random(test_seed() + 1);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < c.d_out.size(); ++i) c.d_out.data()[i] = normal(random);
  for (Tensor<double>* tensor : {&c.inputs.q, &c.inputs.k, &c.inputs.v, &c.d_out}) {
    for (int64_t i = 0; i < tensor->size(); ++i) tensor->data()[i] = round_to(dtype, tensor->data()[i]);
  }
  return c;
}

inline void take_support_of_forward(Case& c) {
  const auto forward = cpu_ref::attention_forward<double>(c.spec, c.inputs.q, c.inputs.k, c.inputs.v,
                                                          {.keep_probabilities = true});
  const auto& p = *forward.probabilities;
  const AttentionShape& s = c.spec.shape;
  for (int64_t row = 0; row < s.rows(); ++row) {
    const double alpha = c.spec.normalizer.alpha_of(row / s.q_len % s.q_heads);
    for (int64_t i = p.row_offsets[row]; i < p.row_offsets[row + 1]; ++i)
      c.support.add(p.columns[i], static_cast<float>(std::pow(p.values[i], alpha - 1)));
    c.support.end_row();
  }
}

// Draws rows with the keys of `sinks` and `least` to `most` others, fewer if a key is drawn twice.
inline void draw_support(Case& c, int64_t least, int64_t most, const std::vector<int32_t>& sinks) {
  std::mt19937_64 random(test_seed() + 2);
  const AttentionShape& s = c.spec.shape;
  std::uniform_int_distribution<int64_t> count(least, most), key(0, s.kv_len - 1);
  std::uniform_real_distribution<double> excess(1e-3, 1);
  for (int64_t row = 0; row < s.rows(); ++row) {
    std::vector<int64_t> keys(sinks.begin(), sinks.end());
    for (int64_t i = count(random); i > 0; --i) keys.push_back(key(random));
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    for (const int64_t j : keys) c.support.add(j, static_cast<float>(excess(random)));
    c.support.end_row();
  }
}

// Draws rows of `count` keys, of which some lie hardly above the threshold.
inline void draw_smallest_excesses(Case& c, int64_t count) {
  draw_support(c, count, count, {});
  std::mt19937_64 random(test_seed() + 5);
  std::uniform_real_distribution<double> exponent(-40, 0);
  for (float& excess : c.support.excess)
    if (random() % 2 == 0) excess = static_cast<float>(std::pow(10, exponent(random)));
}

// Turns the support into one of given thresholds: a row's largest excess becomes its shift.
inline void take_offsets_of_support(Case& c) {
  for (int64_t row = 0; row < c.support.rows(); ++row) {
    float largest = 0;
    for (int64_t i = c.support.first[row]; i < c.support.first[row + 1]; ++i)
      largest = std::max(largest, c.support.excess[i]);
    const double alpha = c.spec.normalizer.alpha_of(row / c.spec.shape.q_len % c.spec.shape.q_heads);
    const double shift = cpu_ref::shift_of_offset(-static_cast<double>(largest), alpha, c.spec.shape.kv_len);
    const double factor = largest > 0 ? shift / static_cast<double>(largest) : 1;
    float raised = 0;
    for (int64_t i = c.support.first[row]; i < c.support.first[row + 1]; ++i) {
      c.support.excess[i] = static_cast<float>(c.support.excess[i] * factor);
      raised = std::max(raised, c.support.excess[i]);
    }
    c.tau_offsets.push_back(-static_cast<double>(raised));
  }
}

// Draws a soft cap, and thresholds for which the support's scores lie from nearly -cap to nearly cap.
inline void take_a_cap(Case& c) {
  std::mt19937_64 random(test_seed() + 3);
  const AttentionShape& s = c.spec.shape;
  c.spec.softcap = 4;
  for (int64_t row = 0; row < s.rows(); ++row) {
    const double a = c.spec.normalizer.alpha_of(row / s.q_len % s.q_heads) - 1;
    std::uniform_real_distribution<double> tau(-4 * a, 4 * a - 1);
    c.tau.push_back(static_cast<double>(static_cast<float>(tau(random))));
  }
}

// Draws sinks, some of them below some rows' thresholds. Needs thresholds.
inline void take_sinks(Case& c) {
  std::mt19937_64 random(test_seed() + 4);
  std::uniform_real_distribution<double> sink(-4, 4);
  for (int64_t h = 0; h < c.spec.shape.q_heads; ++h)
    c.spec.sinks.push_back(static_cast<double>(static_cast<float>(sink(random))));
}

// Draws a bias of some distances; farther ones have the first entry or the last.
inline void take_a_bias(Case& c) {
  std::mt19937_64 random(test_seed() + 5);
  const int64_t distances = std::array<int64_t, 3>{1, 17, 400}[random() % 3];
  c.spec.bias = draw_bias(random, c.spec.shape.q_heads, distances, -distances / 2);
}

struct SupportGradients : Gradients {
  std::vector<double> row_dalpha;  // [rows]; dalpha of a head is the sum over its rows
  std::vector<double> row_dsinks;  // [rows], alike
  double dscores_norm = 0;         // sum of dL/dscore squared, over the support
};

// MATH: Gradients, on the given support.
inline SupportGradients gradients_of_support(const Case& c) {
  const AttentionShape& s = c.spec.shape;
  SupportGradients result;
  result.dq = Tensor<double>(s.batch, s.q_heads, s.q_len, s.head_dim);
  result.dk = result.dv = Tensor<double>(s.batch, s.kv_heads, s.kv_len, s.head_dim);
  result.dalpha.resize(s.q_heads);
  result.row_dalpha.resize(s.rows());
  result.dsinks.resize(c.spec.sinks.size());
  result.row_dsinks.resize(c.spec.sinks.empty() ? 0 : s.rows());
  result.dbias.resize(c.spec.bias.table.size());
  const double scale = c.spec.score_scale();
  for (int64_t row = 0; row < s.rows(); ++row) {
    const int64_t b = row / s.q_len / s.q_heads, h = row / s.q_len % s.q_heads, i = row % s.q_len;
    const int64_t kv = s.kv_head_of(h);
    const double alpha = c.spec.normalizer.alpha_of(h), beta = 1 / (alpha - 1);
    std::vector<double> g, u, w;
    const DropoutRow kept(c.spec.dropout, row);
    const auto factor = [&](int64_t key) {
      const bool stays = !c.spec.dropout.drops() || kept.keeps(key);
      return stays ? 1 / (1 - c.spec.dropout.rate) : 0;
    };
    for (int64_t n = c.support.first[row]; n < c.support.first[row + 1]; ++n) {
      const double* const value = c.inputs.v.row(b, kv, c.support.columns[n]);
      g.push_back(factor(c.support.columns[n]) *
                  std::inner_product(value, value + s.head_dim, c.d_out.row(b, h, i), 0.0));
      w.push_back(std::pow(static_cast<double>(c.support.excess[n]), beta));
      u.push_back(w.back() / static_cast<double>(c.support.excess[n]));
    }
    const size_t keys = g.size();
    const double of_sink =
        c.spec.sinks.empty() ? 0 : std::max(0.0, (alpha - 1) * c.spec.sink_of(h) - c.tau[row]);
    if (of_sink > 0) {
      g.push_back(0);
      w.push_back(std::pow(of_sink, beta));
      u.push_back(w.back() / of_sink);
    }
    const double sum = std::accumulate(w.begin(), w.end(), 0.0);
    const bool given = !c.tau_offsets.empty();
    const std::vector<double>& weights = given ? w : u;
    const double delta = std::inner_product(weights.begin(), weights.end(), g.begin(), 0.0) /
                         std::accumulate(weights.begin(), weights.end(), 0.0);
    const double shift = given ? cpu_ref::shift_of_offset(c.tau_offsets[row], alpha, s.kv_len) : 0;
    for (size_t e = 0; e < g.size(); ++e) {
      const double p = w[e] / sum, centred = g.size() == 1 ? 0 : g[e] - delta;
      const double z = c.tau.empty() ? 0 : c.tau[row] + w[e] / u[e],
                   dscore = u[e] * centred / (given ? sum : 1);
      const double r = w[e] / u[e] / shift;
      if (p > 0) {
        result.row_dalpha[row] += given ? -beta * beta * centred * p * (1 / r - 1 + std::log(r))
                                        : centred * p * beta * (beta - std::log(p));
      }
      if (e == keys) {
        result.row_dsinks[row] = u[e] * centred;
        break;
      }
      const int64_t j = c.support.columns[c.support.first[row] + static_cast<int64_t>(e)];
      result.dscores_norm += dscore * dscore;
      const double ds = scale * dscore *
                        c.spec.cap_slope(z / (alpha - 1) - (c.tau.empty() ? 0 : c.spec.bias.of(s, h, i, j)));
      if (c.spec.bias.any()) result.dbias[static_cast<size_t>(c.spec.bias.index(s, h, i, j))] += dscore;
      for (int64_t d = 0; d < s.head_dim; ++d) {
        result.dq.row(b, h, i)[d] += ds * c.inputs.k.row(b, kv, j)[d];
        result.dk.row(b, kv, j)[d] += ds * c.inputs.q.row(b, h, i)[d];
        result.dv.row(b, kv, j)[d] += factor(j) * p * c.d_out.row(b, h, i)[d];
      }
    }
    result.dalpha[h] += result.row_dalpha[row];
    if (!c.spec.sinks.empty()) result.dsinks[h] += result.row_dsinks[row];
  }
  return result;
}

inline DeviceBuffer upload(const Stream& stream, const void* host, size_t bytes) {
  DeviceBuffer buffer(stream, std::max<int64_t>(16, static_cast<int64_t>(bytes)));
  buffer.fill(0xFF);
  buffer.upload(host, static_cast<int64_t>(bytes));
  return buffer;
}
template <class T>
DeviceBuffer upload(const Stream& stream, const std::vector<T>& host) {
  return upload(stream, host.data(), host.size() * sizeof(T));
}

// The support as forward leaves it: rows in an order drawn with `seed`, with poisoned gaps between them. Rows
// that are not stored are those that had no room in the pool: their count is known, their entries are not.
struct SupportPool {
  SupportPool(
      const HostSupport& host, uint64_t seed,
      const std::function<bool(int64_t row)>& stored = [](int64_t) { return true; })
      : offsets(host.rows(), -1),
        counts(host.rows()),
        columns(host.columns.size() + static_cast<size_t>(host.rows() * kGap),
                std::numeric_limits<int32_t>::max()),
        excess(columns.size(), std::numeric_limits<float>::quiet_NaN()) {
    std::vector<int64_t> order(host.rows());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    int64_t place = 0;
    for (const int64_t row : order) {
      counts[row] = static_cast<int32_t>(host.count(row));
      if (!stored(row)) continue;
      offsets[row] = place;
      std::copy_n(host.columns.begin() + host.first[row], counts[row], columns.begin() + place);
      std::copy_n(host.excess.begin() + host.first[row], counts[row], excess.begin() + place);
      place += counts[row] + kGap;
    }
  }

  static constexpr int64_t kGap = 3;
  std::vector<int64_t> offsets;
  std::vector<int32_t> counts, columns;
  std::vector<float> excess;
};

class DeviceSupport {
 public:
  DeviceSupport(const Stream& stream, const SupportPool& pool) {
    buffers_[0] = upload(stream, pool.offsets);
    buffers_[1] = upload(stream, pool.counts);
    buffers_[2] = upload(stream, pool.columns);
    buffers_[3] = upload(stream, pool.excess);
    support_ = {.capacity = static_cast<int64_t>(pool.columns.size()),
                .offsets = static_cast<int64_t*>(buffers_[0].data()),
                .counts = static_cast<int32_t*>(buffers_[1].data()),
                .columns = static_cast<int32_t*>(buffers_[2].data()),
                .excess = static_cast<float*>(buffers_[3].data())};
  }
  DeviceSupport(const Stream& stream, const HostSupport& host, uint64_t seed)
      : DeviceSupport(stream, SupportPool(host, seed)) {}

  const Support& get() const { return support_; }

 private:
  DeviceBuffer buffers_[4];
  Support support_;
};

class DeviceBackward {
 public:
  DeviceBackward(const Stream& stream, const Case& c)
      : stream_(stream),
        spec_(c.spec),
        dtype_(c.dtype),
        q_(DeviceTensor::from(stream, c.dtype, c.inputs.q)),
        k_(DeviceTensor::from(stream, c.dtype, c.inputs.k)),
        v_(DeviceTensor::from(stream, c.dtype, c.inputs.v)),
        d_out_(DeviceTensor::from(stream, c.dtype, c.d_out)),
        d_q_(stream, c.dtype, q_.view().extents),
        d_k_(stream, c.dtype, k_.view().extents),
        d_v_(stream, c.dtype, v_.view().extents),
        d_alpha_(stream, c.spec.shape.q_heads * 4) {
    const std::vector<float> alpha(c.spec.normalizer.alpha.begin(), c.spec.normalizer.alpha.end());
    alpha_ = upload(stream, alpha);
  }

  // Poisons outputs and workspace before the launch.
  void enqueue(const DeviceSupport& support, bool with_alpha = true) {
    const int64_t bytes = entmax::backward_workspace_bytes(spec_, dtype_, support.get().capacity);
    if (workspace_.bytes() < bytes) workspace_ = DeviceBuffer(stream_, bytes);
    for (DeviceBuffer* buffer : {&workspace_, &d_q_.buffer(), &d_k_.buffer(), &d_v_.buffer(), &d_alpha_})
      buffer->fill(0xFF);
    entmax::enqueue_backward(spec_, dtype_,
                             {.q = q_.view().data,
                              .k = k_.view().data,
                              .v = v_.view().data,
                              .d_out = d_out_.view().data,
                              .support = support.get(),
                              .alpha = static_cast<const float*>(alpha_.data()),
                              .d_q = d_q_.view().data,
                              .d_k = d_k_.view().data,
                              .d_v = d_v_.view().data,
                              .d_alpha = with_alpha ? static_cast<float*>(d_alpha_.data()) : nullptr,
                              .workspace = workspace_.data(),
                              .stream = stream_.handle()});
  }

  Gradients to_host() const {
    const std::vector<float> alpha = download<float>(d_alpha_);
    return {d_q_.to_host(), d_k_.to_host(), d_v_.to_host(), {alpha.begin(), alpha.end()}};
  }

  // All outputs, byte for byte.
  std::vector<char> bytes() {
    std::vector<char> all;
    for (const DeviceBuffer* buffer : {&d_q_.buffer(), &d_k_.buffer(), &d_v_.buffer(), &d_alpha_}) {
      const auto part = download<char>(*buffer);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  template <class T>
  static std::vector<T> download(const DeviceBuffer& buffer) {
    std::vector<T> host(buffer.bytes() / sizeof(T));
    buffer.download(host.data(), buffer.bytes());
    return host;
  }

  const Stream& stream_;
  AttentionSpec spec_;
  Dtype dtype_;
  DeviceTensor q_, k_, v_, d_out_, d_q_, d_k_, d_v_;
  DeviceBuffer d_alpha_, alpha_, workspace_;
};

// dL/dalpha is never rounded to dtype. If a row's p are all similar, its terms cancel to a few thousandths,
// of which float keeps 1e-10.
constexpr double kAlphaBound = 1e-8;

// Rows add to dL/dalpha with either sign, and may nearly cancel by chance. So the error is relative to the
// rows.
inline double alpha_nmse(const std::vector<double>& out, const std::vector<double>& expected,
                         const std::vector<double>& rows) {
  double error = 0, norm = kLeastNorm;
  for (size_t h = 0; h < expected.size(); ++h) error += (out[h] - expected[h]) * (out[h] - expected[h]);
  for (const double row : rows) norm += row * row;
  return error / norm;
}

inline double squared_error(const std::vector<double>& out, const std::vector<double>& expected) {
  double error = 0;
  for (size_t i = 0; i < expected.size(); ++i) error += (out[i] - expected[i]) * (out[i] - expected[i]);
  return error;
}

inline void check_close(const Gradients& out, const Gradients& expected,
                        const std::vector<double>& row_dalpha, Dtype dtype) {
  const double bound = Tolerance().of(dtype);
  CHECK(nmse(out.dq, expected.dq) <= bound);
  CHECK(nmse(out.dk, expected.dk) <= bound);
  CHECK(nmse(out.dv, expected.dv) <= bound);
  CHECK(alpha_nmse(out.dalpha, expected.dalpha, row_dalpha) <= kAlphaBound);
}
inline void check_close(const Gradients& out, const Case& c) {
  const SupportGradients expected = gradients_of_support(c);
  if (!c.spec.sinks.empty())
    CHECK(alpha_nmse(out.dsinks, expected.dsinks, expected.row_dsinks) <= kAlphaBound);
  if (c.spec.bias.any())
    CHECK(squared_error(out.dbias, expected.dbias) <= Tolerance().of(Dtype::f32) * expected.dscores_norm);
  check_close(out, expected, expected.row_dalpha, c.dtype);
}

// Where a key enters the support, the gradient jumps if alpha is 2, and rises infinitely steeply if alpha is
// above 1.5: as u^((2 - alpha) / (alpha - 1)), u = z - tau. Rows with a key so close to tau that float errors
// matter get an output gradient of 0.
inline void leave_unclear_rows_out(Case& c, const std::vector<double>& tau) {
  constexpr double kFloat = 1e-6, kShows = 1e-4;
  const AttentionShape& s = c.spec.shape;
  for (int64_t row = 0; row < s.rows(); ++row) {
    const int64_t b = row / s.q_len / s.q_heads, h = row / s.q_len % s.q_heads, i = row % s.q_len;
    const double alpha = c.spec.normalizer.alpha_of(h), power = (2 - alpha) / (alpha - 1);
    if (alpha <= 1.5) continue;
    const auto of_gradient = [&](double u) { return u > 0 ? std::pow(u, power) : 0.0; };
    const double* const q = c.inputs.q.row(b, h, i);
    double sum = 0, unclear = 0;
    for (int64_t j = 0; j < s.kv_len; ++j) {
      const double* const key = c.inputs.k.row(b, s.kv_head_of(h), j);
      const double product = std::inner_product(q, q + s.head_dim, key, 0.0);
      const double u = (alpha - 1) * c.spec.score_scale() * product - tau[static_cast<size_t>(row)];
      sum += of_gradient(u);
      unclear = std::max(unclear, of_gradient(u + kFloat) - of_gradient(u - kFloat));
    }
    if (unclear > kShows * sum) std::fill_n(c.d_out.row(b, h, i), s.head_dim, 0.0);
  }
}

}  // namespace splash::gpu::testing
