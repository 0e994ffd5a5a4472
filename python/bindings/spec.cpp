// AttentionSpec: a problem without its data, checked when it is made.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>
#include <optional>

#include "core/attention_spec.h"
#include "python/bindings/bindings.h"

namespace splash::python {
namespace {

using Table = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;

using Numbers = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<int64_t> entries(const std::optional<Table>& table) {
  if (!table) return {};
  return {table->data(), table->data() + table->size()};
}

// Visible keys of each query row: [batch, q_heads, q_len].
nb::object visible_keys(const AttentionSpec& spec) {
  const AttentionShape& s = spec.shape;
  std::vector<int64_t> counts;
  counts.reserve(s.rows());
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.q_heads; ++h) {
      for (int64_t i = 0; i < s.q_len; ++i) counts.push_back(spec.mask.row(s, b, h, i).count());
    }
  }
  return to_numpy(std::move(counts), {s.batch, s.q_heads, s.q_len});
}

// The keys that each query sees, whatever its position: from its first to below its second, [q_len, 2].
nb::object key_ranges(const AttentionSpec& spec) {
  std::vector<int32_t> ranges;
  ranges.reserve(static_cast<size_t>(2 * spec.shape.q_len));
  for (int64_t i = 0; i < spec.shape.q_len; ++i) {
    const RowMask row = spec.mask.row(spec.shape, 0, 0, i);
    ranges.insert(ranges.end(), {static_cast<int32_t>(row.begin), static_cast<int32_t>(row.end)});
  }
  return to_numpy(std::move(ranges), {spec.shape.q_len, 2});
}

void make_spec(AttentionSpec* self, const std::array<int64_t, 6>& extents, std::vector<double> alpha,
               double scale, bool causal, int64_t k_keep, int64_t window,
               const std::array<std::optional<Table>, 4>& tables, std::vector<int64_t> head_k_keep,
               double softcap, std::vector<double> sinks, const Dropout& dropout,
               const std::optional<Numbers>& bias, int64_t bias_first, const std::optional<Table>& pairs) {
  AttentionSpec spec;
  spec.shape = {extents[0], extents[1], extents[2], extents[3], extents[4], extents[5]};
  spec.scale = scale;
  spec.normalizer.alpha = std::move(alpha);
  if (k_keep != 0) spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
  if (!head_k_keep.empty())
    spec.selection = {.kind = SelectionKind::top_k_row, .head_k_keep = std::move(head_k_keep)};
  spec.mask.causal = causal;
  spec.mask.window = window;
  spec.mask.q_positions = entries(tables[0]);
  spec.mask.k_positions = entries(tables[1]);
  spec.mask.cu_seqlens_q = entries(tables[2]);
  spec.mask.cu_seqlens_k = entries(tables[3]);
  spec.softcap = softcap;
  spec.sinks = std::move(sinks);
  spec.dropout = dropout;
  if (bias)
    spec.bias = {
        {bias->data(), bias->data() + bias->size()}, static_cast<int64_t>(bias->shape(1)), bias_first};
  for (const int64_t word : entries(pairs)) spec.mask.pairs.push_back(static_cast<uint64_t>(word));
  spec.validate();
  new (self) AttentionSpec(std::move(spec));
}

}  // namespace

void bind_spec(nb::module_& module) {
  nb::class_<AttentionSpec>(module, "Spec")
      .def(
          "__init__",
          [](AttentionSpec* self, int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t q_len,
             int64_t kv_len, int64_t head_dim, std::vector<double> alpha, double scale, bool causal,
             int64_t k_keep, int64_t window, const std::optional<Table>& q_positions,
             const std::optional<Table>& k_positions, const std::optional<Table>& cu_seqlens_q,
             const std::optional<Table>& cu_seqlens_k, std::vector<int64_t> head_k_keep, double softcap,
             std::vector<double> sinks, double dropout, uint64_t dropout_seed,
             const std::optional<Numbers>& bias, int64_t bias_first, const std::optional<Table>& pairs) {
            make_spec(self, {batch, q_heads, kv_heads, q_len, kv_len, head_dim}, std::move(alpha), scale,
                      causal, k_keep, window, {q_positions, k_positions, cu_seqlens_q, cu_seqlens_k},
                      std::move(head_k_keep), softcap, std::move(sinks), {dropout, dropout_seed}, bias,
                      bias_first, pairs);
          },
          nb::arg("batch"), nb::arg("q_heads"), nb::arg("kv_heads"), nb::arg("q_len"), nb::arg("kv_len"),
          nb::arg("head_dim"), nb::arg("alpha"), nb::arg("scale"), nb::arg("causal"), nb::arg("k_keep"),
          nb::arg("window"), nb::arg("q_positions").none(), nb::arg("k_positions").none(),
          nb::arg("cu_seqlens_q").none(), nb::arg("cu_seqlens_k").none(),
          nb::arg("head_k_keep") = std::vector<int64_t>{}, nb::arg("softcap") = 0.0,
          nb::arg("sinks") = std::vector<double>{}, nb::arg("dropout") = 0.0, nb::arg("dropout_seed") = 0,
          nb::arg("bias").none() = nb::none(), nb::arg("bias_first") = 0,
          nb::arg("pairs").none() = nb::none(),
          "scale 0 stands for 1/sqrt(head_dim), k_keep 0 for all keys, window 0 for no window, softcap 0 for "
          "none; head_k_keep, unless empty, stands in k_keep's place for each query head; sinks has one a "
          "query head, or none; bias: float64 [q_heads, distances] from bias_first on, or None; pairs: int64 "
          "words of core/pair_words.h, or None. Raises "
          "ValueError where a part does not fit the shape.")
      .def("visible_keys", &visible_keys, "Visible keys of each query row: int64 [batch, q_heads, q_len].")
      .def("key_ranges", &key_ranges,
           "First key, and the one after the last, that each query sees, whatever its position: int32 "
           "[q_len, 2].");
}

}  // namespace splash::python
