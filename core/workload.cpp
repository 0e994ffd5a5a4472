#include "core/workload.h"

#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "core/error.h"
#include "core/names.h"
#include "core/parallel.h"
#include "core/random.h"

namespace splash {
namespace {

constexpr Names<WorkloadKind, 5> kWorkloads{"workload", {"gaussian", "clustered", "local", "sink", "ties"}};

template <class T>
void fill_normal(Tensor<T>& tensor, CounterRandom random, double sd) {
  parallel_for(tensor.size(), kElementsAtOnce,
               [&](int64_t i) { tensor.data()[i] = static_cast<T>(sd * random.normal(i)); });
}

// Calls set(b, h, i, row pointer) for every row.
template <class T, class Set>
void for_each_row(Tensor<T>& tensor, Set set) {
  for (int64_t b = 0; b < tensor.batch(); ++b) {
    for (int64_t h = 0; h < tensor.heads(); ++h) {
      for (int64_t i = 0; i < tensor.length(); ++i) set(b, h, i, tensor.row(b, h, i));
    }
  }
}

// Rows = centre of a random cluster + relative noise. Queries and keys share the centres of their key head.
template <class T>
void cluster(Tensor<T>& tensor, const Workload& w, CounterRandom centres, CounterRandom noise,
             int64_t kv_heads) {
  const int64_t group = tensor.heads() / kv_heads;
  uint64_t row_index = 0;
  for_each_row(tensor, [&](int64_t b, int64_t h, int64_t, T* row) {
    const uint64_t head = b * kv_heads + h / group;
    const uint64_t c = noise.bits(~row_index) % static_cast<uint64_t>(w.clusters);
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      const double centre = centres.normal((head * w.clusters + c) * tensor.dim() + d);
      row[d] = static_cast<T>(row[d] * (centre + w.spread * noise.normal(row_index * tensor.dim() + d)));
    }
    ++row_index;
  });
}

// Random Fourier features (Rahimi, Recht 2007) of the Laplace kernel exp(-|i - j| / length), with quantiles
// of the Cauchy distribution as frequencies. Half of the dimensions hold positions; the others keep their
// Gaussian content.
template <class T>
void add_positions(Tensor<T>& tensor, const Workload& w, double amplitude) {
  const int64_t pairs = std::max<int64_t>(1, tensor.dim() / 4);
  for_each_row(tensor, [&](int64_t, int64_t, int64_t i, T* row) {
    for (int64_t p = 0; p < pairs && 2 * p + 1 < tensor.dim(); ++p) {
      const double quantile = (p + 0.5) / pairs;
      const double frequency = std::tan(0.5 * std::numbers::pi * quantile) / w.length;
      row[2 * p] = static_cast<T>(amplitude * std::cos(frequency * i));
      row[2 * p + 1] = static_cast<T>(amplitude * std::sin(frequency * i));
    }
  });
}

// Makes the scores equal to the keys' first coordinate: q = (sqrt(d), 0, ...), so that scale * <q, k> = k[0].
template <class T>
void place_sink(AttentionInputs<T>& in, const Workload& w, CounterRandom random) {
  const double root = std::sqrt(static_cast<double>(in.q.dim()));
  for_each_row(in.q, [&](int64_t, int64_t, int64_t, T* row) {
    std::fill(row, row + in.q.dim(), T(0));
    row[0] = static_cast<T>(root);
  });
  uint64_t index = 0;
  for_each_row(in.k, [&](int64_t, int64_t, int64_t j, T* row) {
    row[0] = static_cast<T>(j == 0 ? w.gap : w.spread * random.normal(index));
    ++index;
  });
}

template <class T>
void make_ties(AttentionInputs<T>& in, const Workload& w, CounterRandom random) {
  for_each_row(in.q, [&](int64_t, int64_t, int64_t i, T* row) {
    for (int64_t d = 0; d < in.q.dim(); ++d)
      row[d] = static_cast<T>(int64_t(random.bits(i * in.q.dim() + d) % 5) - 2);
  });
  const CounterRandom keys = random.stream(1);
  uint64_t index = 0;
  for_each_row(in.k, [&](int64_t, int64_t, int64_t, T* row) {
    const uint64_t c = random.bits(~index++) % static_cast<uint64_t>(w.clusters);
    for (int64_t d = 0; d < in.k.dim(); ++d)
      row[d] = static_cast<T>(int64_t(keys.bits(c * in.k.dim() + d) % 5) - 2);
  });
}

}  // namespace

std::string_view to_string(WorkloadKind kind) {
  return kWorkloads[kind];
}

WorkloadKind workload_from_string(std::string_view name) {
  return kWorkloads.kind_of(name);
}

void Workload::validate() const {
  const auto positive = [](const char* name, double value) {
    if (!std::isfinite(value) || value <= 0) {
      throw InvalidArgument(fmt::format("workload {} is {}; it must be a finite number > 0", name, value));
    }
  };
  positive("query_variance", query_variance);
  positive("clusters", static_cast<double>(clusters));
  positive("length", length);
  if (!std::isfinite(spread) || spread < 0) {
    throw InvalidArgument(fmt::format("workload spread is {}; it must be a finite number >= 0", spread));
  }
  if (!std::isfinite(gap)) throw InvalidArgument(fmt::format("workload gap is {}; it must be finite", gap));
}

template <class T>
AttentionInputs<T> make_inputs(const Workload& w, const AttentionShape& s) {
  w.validate();
  s.validate();
  AttentionInputs<T> in{Tensor<T>(s.batch, s.q_heads, s.q_len, s.head_dim),
                        Tensor<T>(s.batch, s.kv_heads, s.kv_len, s.head_dim),
                        Tensor<T>(s.batch, s.kv_heads, s.kv_len, s.head_dim)};
  const CounterRandom root(w.seed);
  const double temperature = std::sqrt(w.query_variance);
  fill_normal(in.q, root.stream(0), temperature);
  fill_normal(in.k, root.stream(1), 1.0);
  fill_normal(in.v, root.stream(2), 1.0);
  switch (w.kind) {
    case WorkloadKind::gaussian:
      break;
    case WorkloadKind::clustered:
      for (int64_t i = 0; i < in.q.size(); ++i) in.q.data()[i] = static_cast<T>(temperature);
      for (int64_t i = 0; i < in.k.size(); ++i) in.k.data()[i] = T(1);
      cluster(in.q, w, root.stream(3), root.stream(4), s.kv_heads);
      cluster(in.k, w, root.stream(3), root.stream(5), s.kv_heads);
      break;
    case WorkloadKind::local:
      add_positions(in.q, w, 2.0 * temperature);
      add_positions(in.k, w, 2.0);
      break;
    case WorkloadKind::sink:
      place_sink(in, w, root.stream(3));
      break;
    case WorkloadKind::ties:
      make_ties(in, w, root.stream(3));
      break;
  }
  return in;
}

template AttentionInputs<float> make_inputs<float>(const Workload&, const AttentionShape&);
template AttentionInputs<double> make_inputs<double>(const Workload&, const AttentionShape&);

std::vector<double> make_score_row(const Workload& w, int64_t n) {
  w.validate();
  if (n < 1)
    throw InvalidArgument(fmt::format("a score row of {} keys was asked for; it needs at least 1", n));
  const CounterRandom random(w.seed);
  if (w.kind == WorkloadKind::gaussian || w.kind == WorkloadKind::ties) {
    std::vector<double> scores(n);
    for (int64_t j = 0; j < n; ++j) {
      const double s = std::sqrt(w.query_variance) * random.normal(j);
      scores[j] = w.kind == WorkloadKind::ties ? 0.5 * std::round(2.0 * s) : s;
    }
    return scores;
  }
  const AttentionShape shape{.q_len = n, .kv_len = n, .head_dim = 64};
  const AttentionShape one_query{.q_len = 1, .kv_len = n, .head_dim = 64};
  const bool local = w.kind == WorkloadKind::local;  // uses the middle query, at its true position
  const AttentionInputs<double> in = make_inputs<double>(w, local ? shape : one_query);
  const auto q = in.q.matrix(0, 0).row(local ? n / 2 : 0);
  const Eigen::VectorXd s = in.k.matrix(0, 0) * q.transpose() / std::sqrt(64.0);
  return {s.begin(), s.end()};
}

Selection make_shared_keys(const AttentionShape& shape, const Mask& mask, int64_t block, double share,
                           uint64_t seed) {
  if (!(share > 0 && share <= 1))
    throw InvalidArgument(fmt::format("share is {}; it must lie in (0, 1]", share));
  std::vector<std::vector<int32_t>> lists;
  Selection selection{.kind = SelectionKind::shared_keys, .k_keep = 1, .block = block};
  const CounterRandom random = CounterRandom(seed).stream(11);
  uint64_t draw = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      for (int64_t q = 0; q < shape.q_len; q += block) {
        const RowMask row = mask.row(shape, b, kv_head * shape.group(), std::min(q + block, shape.q_len) - 1);
        std::vector<int32_t> visible, keys;
        for (int64_t key = row.begin; key < row.end; ++key) {
          if (row.visible(key)) visible.push_back(static_cast<int32_t>(key));
        }
        const auto n = static_cast<double>(visible.size());
        const auto count = static_cast<int64_t>(std::ceil(share * n));
        int64_t place = -1;
        for (int64_t i = 0; i < count; ++i) {
          const double drawn =
              (static_cast<double>(i) + random.uniform(draw++)) * n / static_cast<double>(count);
          place = std::max(place + 1, static_cast<int64_t>(drawn));
          keys.push_back(visible[place]);
        }
        selection.k_keep = std::max(selection.k_keep, count);
        lists.push_back(std::move(keys));
      }
    }
  }
  for (std::vector<int32_t>& list : lists) {
    list.resize(selection.k_keep, -1);
    selection.keys.insert(selection.keys.end(), list.begin(), list.end());
  }
  return selection;
}

}  // namespace splash
