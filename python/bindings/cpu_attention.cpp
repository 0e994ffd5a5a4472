// Exact entmax attention of arrays in host memory: float on the screened path, double on the plain reference.

#include <algorithm>
#include <cmath>
#include <nanobind/stl/optional.h>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "core/attention_spec.h"
#include "core/error.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/forward.h"
#include "cpu_ref/attention/forward_rows.h"
#include "cpu_ref/attention/given_threshold.h"
#include "cpu_ref/attention/screened.h"
#include "python/bindings/bindings.h"

namespace splash::python {
namespace {

using cpu_ref::Gradients;
using cpu_ref::SparseProbabilities;

// [batch, q_heads, q_len]: offsets of given thresholds.
template <class T>
using OffsetArray = std::optional<nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>>;

template <class T>
std::span<const T> entries(const OffsetArray<T>& array) {
  if (!array) return {};
  return {array->data(), array->size()};
}

// One form for both paths.
template <class T>
struct Forward {
  Tensor<T> out;
  std::vector<double> tau;
  std::vector<int64_t> support;
  SparseProbabilities<T> probabilities;  // empty unless kept
};

cpu_ref::Solver solver_of(const AttentionSpec& spec) {
  const bool newton = std::ranges::all_of(spec.normalizer.alpha, [](double alpha) { return alpha <= 2; });
  return newton ? cpu_ref::Solver::newton : cpu_ref::Solver::halley_bisection;
}

Forward<float> run_forward(const AttentionSpec& spec, TensorView<const float> q, TensorView<const float> k,
                           TensorView<const float> v, bool keep, std::span<const float> tau_offsets) {
  cpu_ref::ScreenedForward result = cpu_ref::screened_forward(spec, q, k, v, keep, {}, tau_offsets);
  return {std::move(result.out), std::move(result.tau), std::move(result.support),
          std::move(result.probabilities)};
}

Forward<double> run_forward(const AttentionSpec& spec, TensorView<const double> q, TensorView<const double> k,
                            TensorView<const double> v, bool keep, std::span<const double> tau_offsets) {
  auto result = cpu_ref::attention_forward<double>(
      spec, q, k, v, {.solver = solver_of(spec), .keep_probabilities = keep, .tau_offsets = tau_offsets});
  Forward<double> forward{std::move(result.out), std::move(result.tau), std::move(result.support), {}};
  if (result.probabilities) forward.probabilities = std::move(*result.probabilities);
  return forward;
}

Gradients<float> run_backward(const AttentionSpec& spec, TensorView<const float> q, TensorView<const float> k,
                              TensorView<const float> v, TensorView<const float> d_out,
                              std::span<const float> tau_offsets) {
  const cpu_ref::ScreenedForward forward = cpu_ref::screened_forward(spec, q, k, v, true, {}, tau_offsets);
  // The support of a NaN row is empty: its gradients are the reference's, NaN.
  const bool poisoned = std::ranges::any_of(forward.tau, [](double tau) { return std::isnan(tau); });
  if (poisoned) {
    const std::vector<double> offsets(tau_offsets.begin(), tau_offsets.end());
    return cpu_ref::attention_backward<float>(spec, q, k, v, d_out,
                                              {.solver = solver_of(spec), .tau_offsets = offsets});
  }
  return cpu_ref::screened_backward(spec, forward, q, k, v, d_out, tau_offsets);
}

Gradients<double> run_backward(const AttentionSpec& spec, TensorView<const double> q,
                               TensorView<const double> k, TensorView<const double> v,
                               TensorView<const double> d_out, std::span<const double> tau_offsets) {
  return cpu_ref::attention_backward<double>(spec, q, k, v, d_out,
                                             {.solver = solver_of(spec), .tau_offsets = tau_offsets});
}

// m - tau of each row, m the largest z: what the largest probability is the power of, unless it was given.
// NaN where tau is, 0 without keys.
template <class T>
std::vector<double> peaks(const AttentionSpec& spec, const Forward<T>& forward,
                          std::span<const T> tau_offsets) {
  const SparseProbabilities<T>& p = forward.probabilities;
  const int64_t q_len = spec.shape.q_len;
  std::vector<double> result(forward.tau.size());
  for (size_t r = 0; r < result.size(); ++r) {
    const double alpha = spec.normalizer.alpha_of(static_cast<int64_t>(r) / q_len % spec.shape.q_heads);
    double largest = 0;
    for (int64_t e = p.row_offsets[r]; e < p.row_offsets[r + 1]; ++e)
      largest = std::max<double>(largest, p.values[e]);
    result[r] = std::isnan(forward.tau[r]) ? forward.tau[r] : std::pow(largest, alpha - 1);
    if (!tau_offsets.empty() && largest > 0)
      result[r] = cpu_ref::shift_of_offset(tau_offsets[r], alpha, spec.shape.kv_len);
  }
  return result;
}

template <class To, class From>
std::vector<To> converted(const std::vector<From>& values) {
  return {values.begin(), values.end()};
}

template <class T>
nb::tuple forward(const AttentionSpec& spec, const TensorArray<T>& q, const TensorArray<T>& k,
                  const TensorArray<T>& v, bool with_peak, const OffsetArray<T>& tau_offsets) {
  Forward<T> result;
  std::vector<double> peak;
  {
    const nb::gil_scoped_release release;
    const std::span<const T> offsets = entries<T>(tau_offsets);
    result = run_forward(spec, view<T>(q), view<T>(k), view<T>(v), with_peak, offsets);
    if (with_peak) peak = peaks(spec, result, offsets);
  }
  const AttentionShape& s = spec.shape;
  const std::vector<int64_t> rows{s.batch, s.q_heads, s.q_len};
  return nb::make_tuple(to_numpy(std::move(result.out)), to_numpy(converted<T>(result.tau), rows),
                        to_numpy(converted<int32_t>(result.support), rows),
                        to_numpy(converted<T>(peak), with_peak ? rows : std::vector<int64_t>{0}));
}

template <class T>
nb::tuple backward(const AttentionSpec& spec, const TensorArray<T>& q, const TensorArray<T>& k,
                   const TensorArray<T>& v, const TensorArray<T>& d_out, const OffsetArray<T>& tau_offsets) {
  Gradients<T> gradients;
  const int64_t heads = spec.shape.q_heads;
  {
    const nb::gil_scoped_release release;
    gradients =
        run_backward(spec, view<T>(q), view<T>(k), view<T>(v), view<T>(d_out), entries<T>(tau_offsets));
  }
  return nb::make_tuple(to_numpy(std::move(gradients.dq)), to_numpy(std::move(gradients.dk)),
                        to_numpy(std::move(gradients.dv)), to_numpy(std::move(gradients.dalpha), {heads}),
                        to_numpy(std::move(gradients.dsinks), {heads}),
                        to_numpy(std::move(gradients.dbias), {heads, spec.bias.distances}));
}

template <class T>
nb::tuple probabilities(const AttentionSpec& spec, const TensorArray<T>& q, const TensorArray<T>& k,
                        const TensorArray<T>& v, const OffsetArray<T>& tau_offsets) {
  SparseProbabilities<T> p;
  {
    const nb::gil_scoped_release release;
    p = run_forward(spec, view<T>(q), view<T>(k), view<T>(v), true, entries<T>(tau_offsets)).probabilities;
  }
  const auto rows = static_cast<int64_t>(p.row_offsets.size()),
             entries = static_cast<int64_t>(p.columns.size());
  return nb::make_tuple(to_numpy(std::move(p.row_offsets), {rows}), to_numpy(std::move(p.columns), {entries}),
                        to_numpy(std::move(p.values), {entries}));
}

using Offsets = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Columns = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple block_counts(const AttentionSpec& spec, const Offsets& row_offsets, const Columns& columns,
                       int64_t block) {
  const AttentionShape& s = spec.shape;
  if (static_cast<int64_t>(row_offsets.size()) != s.rows() + 1)
    throw InvalidArgument("row_offsets must have one entry more than there are query rows");
  if (block < 1) throw InvalidArgument("block must be at least 1");
  const std::span offsets(row_offsets.data(), row_offsets.size());
  const std::span keys(columns.data(), columns.size());
  if (offsets.front() != 0 || offsets.back() != static_cast<int64_t>(keys.size()) ||
      !std::ranges::is_sorted(offsets))
    throw InvalidArgument(
        fmt::format("row_offsets must rise from 0 to {}, the number of columns", keys.size()));
  if (std::ranges::any_of(keys, [&](int32_t key) { return key < 0 || key >= s.kv_len; }))
    throw InvalidArgument(fmt::format("columns must lie in [0, {}), the keys", s.kv_len));
  cpu_ref::BlockMapBuilder builder(s, block);
  cpu_ref::Row<float> row;
  for (int64_t r = 0; r < s.rows(); ++r) {
    const cpu_ref::RowAddress at = cpu_ref::row_address(s, r);
    row.keys.assign(columns.data() + row_offsets.data()[r], columns.data() + row_offsets.data()[r + 1]);
    row.p.assign(row.keys.size(), 1.0F);
    builder.note(at, spec.mask.row(s, at.batch, at.q_head, at.query), row);
  }
  const cpu_ref::BlockMap map = std::move(builder).finish();
  const int64_t active = map.count(cpu_ref::BlockMap::active);
  return nb::make_tuple(active, active + map.count(cpu_ref::BlockMap::inactive));
}

template <class T>
void bind_attention_of(nb::module_& module) {
  const auto q = nb::arg("q").noconvert(), k = nb::arg("k").noconvert(), v = nb::arg("v").noconvert();
  const auto offsets = nb::arg("tau_offsets").noconvert().none() = nb::none();
  module.def("attention_forward", &forward<T>, nb::arg("spec"), q, k, v, nb::arg("with_peak"), offsets,
             "(out as q, tau as q, support int32, peak as q: m - tau, empty unless asked for)");
  module.def("attention_backward", &backward<T>, nb::arg("spec"), q, k, v, nb::arg("d_out").noconvert(),
             offsets,
             "(d_q, d_k, d_v, d_alpha float64 [q_heads], d_sinks float64 [q_heads], d_bias float64 [q_heads, "
             "distances])");
  module.def("attention_probabilities", &probabilities<T>, nb::arg("spec"), q, k, v, offsets,
             "(row_offsets int64 [rows + 1], columns int32, values) of the rows [batch, q_heads, q_len]");
}

}  // namespace

void bind_cpu_attention(nb::module_& module) {
  bind_attention_of<float>(module);
  bind_attention_of<double>(module);
  module.def("block_counts", &block_counts, nb::arg("spec"), nb::arg("row_offsets").noconvert(),
             nb::arg("columns").noconvert(), nb::arg("block"),
             "(active, visible) blocks of block x block pairs over all heads");
}

}  // namespace splash::python
