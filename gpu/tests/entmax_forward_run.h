#pragma once
// A launch of the flagship's forward, with everything that it writes poisoned first, and the checks of its
// rows.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include <doctest/doctest.h>

#include "core/tensor.h"
#include "cpu_ref/attention/forward.h"
#include "gpu/engine/tensor.h"
#include "gpu/entmax/forward.h"

namespace splash::gpu::testing {

// What forward writes besides its output, on the host.
struct RowResults {
  std::vector<float> tau;        // [rows]
  std::vector<int64_t> offsets;  // [rows]
  std::vector<int32_t> counts;   // [rows]
  std::vector<int32_t> columns;  // [capacity]
  std::vector<float> excess;     // [capacity]
  unsigned long long used = 0;
};

// The inputs and outputs of a launch, in device memory and as host vectors.
struct ForwardRun {
  ForwardRun(const AttentionSpec& spec, Dtype dtype, const AttentionInputs<double>& inputs, int64_t capacity,
             const Stream& stream, entmax::ForwardPath path = entmax::ForwardPath::fastest,
             const std::vector<double>& given_offsets = {}, const entmax::Tuning& tuning = {})
      : q(DeviceTensor::from(stream, dtype, inputs.q)),
        k(DeviceTensor::from(stream, dtype, inputs.k)),
        v(DeviceTensor::from(stream, dtype, inputs.v)),
        out(stream, dtype, q.view().extents),
        rows(spec.shape.rows()),
        room(capacity),
        alpha(stream, static_cast<int64_t>(spec.normalizer.alpha.size() * sizeof(float))),
        tau_offsets(stream, static_cast<int64_t>(given_offsets.size()) * 4 + 16),
        head_k_keep(stream, spec.shape.q_heads * 4),
        sinks(stream, spec.shape.q_heads * 4),
        dropout_seed(stream, 8),
        bias(stream, static_cast<int64_t>(spec.bias.table.size()) * 4 + 16),
        tau(stream, rows * 4),
        used(stream, 8),
        offsets(stream, rows * 8),
        counts(stream, rows * 4),
        columns(stream, capacity * 4),
        excess(stream, capacity * 4),
        workspace(stream, entmax::forward_workspace_bytes(spec, dtype, tuning)) {
    const std::vector<float> alphas(spec.normalizer.alpha.begin(), spec.normalizer.alpha.end());
    alpha.upload(alphas.data(), alpha.bytes());
    const std::vector<float> given(given_offsets.begin(), given_offsets.end());
    if (!given.empty()) tau_offsets.upload(given.data(), static_cast<int64_t>(given.size()) * 4);
    const std::vector<int> kept(spec.selection.head_k_keep.begin(), spec.selection.head_k_keep.end());
    if (!kept.empty()) head_k_keep.upload(kept.data(), head_k_keep.bytes());
    const std::vector<float> of_heads(spec.sinks.begin(), spec.sinks.end());
    if (!of_heads.empty()) sinks.upload(of_heads.data(), sinks.bytes());
    dropout_seed.upload(&spec.dropout.seed, dropout_seed.bytes());
    const std::vector<float> biases(spec.bias.table.begin(), spec.bias.table.end());
    if (!biases.empty()) bias.upload(biases.data(), static_cast<int64_t>(biases.size()) * 4);
    const entmax::MaskTables tables(spec);
    mask_tables = DeviceBuffer(stream, std::max<int64_t>(tables.bytes(), 16));
    if (tables.bytes() > 0) mask_tables.upload(tables.data(), tables.bytes());
    for (DeviceBuffer* buffer : {&out.buffer(), &tau, &offsets, &counts, &columns, &excess, &workspace})
      buffer->fill(0xFF);
    used.fill(0);
    entmax::enqueue_forward(
        spec, dtype,
        {.q = q.view().data,
         .k = k.view().data,
         .v = v.view().data,
         .out = out.view().data,
         .alpha = static_cast<const float*>(alpha.data()),
         .mask = tables.at(mask_tables.data()),
         .head_k_keep = kept.empty() ? nullptr : static_cast<const int*>(head_k_keep.data()),
         .tau_offsets = given.empty() ? nullptr : static_cast<const float*>(tau_offsets.data()),
         .sinks = static_cast<const float*>(sinks.data()),
         .dropout_seed = static_cast<const uint64_t*>(dropout_seed.data()),
         .bias = static_cast<const float*>(bias.data()),
         .tau = static_cast<float*>(tau.data()),
         .support = support(),
         .workspace = workspace.data(),
         .stream = stream.handle(),
         .path = path,
         .tuning = tuning});
    stream.synchronize();
  }

  template <class T>
  static std::vector<T> host(const DeviceBuffer& buffer, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    buffer.download(values.data(), count * static_cast<int64_t>(sizeof(T)));
    return values;
  }
  entmax::Support support() const {
    return {.capacity = room,
            .used = static_cast<unsigned long long*>(used.data()),
            .offsets = static_cast<int64_t*>(offsets.data()),
            .counts = static_cast<int32_t*>(counts.data()),
            .columns = static_cast<int32_t*>(columns.data()),
            .excess = static_cast<float*>(excess.data())};
  }
  uint64_t entries() const { return host<unsigned long long>(used, 1).front(); }

  RowResults row_results() const {
    return {host<float>(tau, rows),       host<int64_t>(offsets, rows), host<int32_t>(counts, rows),
            host<int32_t>(columns, room), host<float>(excess, room),    entries()};
  }

  // Output, tau, and the support row after row, wherever it lies: these must not change from run to run.
  std::vector<char> bytes() {
    std::vector<char> all = host<char>(out.buffer(), out.buffer().bytes());
    const auto add = [&all](const auto& values, int64_t first, int64_t count) {
      const auto* const from = reinterpret_cast<const char*>(values.data() + first);
      all.insert(all.end(), from, from + count * static_cast<int64_t>(sizeof(values[0])));
    };
    const RowResults results = row_results();
    add(results.tau, 0, rows);
    add(results.counts, 0, rows);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = results.offsets[row];
      if (at < 0) continue;
      add(results.columns, at, results.counts[row]);
      add(results.excess, at, results.counts[row]);
    }
    return all;
  }

  DeviceTensor q, k, v, out;
  int64_t rows, room;
  DeviceBuffer alpha, tau_offsets, head_k_keep, sinks, dropout_seed, bias, mask_tables, tau, used, offsets,
      counts, columns, excess, workspace;
};

// The largest |tau|. All z of a support are within 1 of it.
inline double largest_tau(const cpu_ref::ForwardResult<double>& oracle) {
  double largest = 0;
  for (const double tau : oracle.tau)
    largest = std::isfinite(tau) ? std::max(largest, std::abs(tau)) : largest;
  return largest;
}

// The error that float32 scores may have, in z. For large z it is limited by float's precision.
inline double score_error(const cpu_ref::ForwardResult<double>& oracle) {
  return std::max(2e-5, 4e-6 * largest_tau(oracle));
}

// Compares all rows with the oracle, which must have kept its probabilities: tau, sums of p, every entry of
// the support. score_error: of the scores, in z. left_out: rows to skip, or empty.
inline void check_rows(const AttentionSpec& spec, const RowResults& results,
                       const cpu_ref::ForwardResult<double>& oracle, double score_error,
                       const std::vector<char>& left_out = {}) {
  const auto& [tau, offsets, counts, columns, excess, used] = results;
  const AttentionShape& s = spec.shape;
  const auto& p = *oracle.probabilities;
  int64_t stored = 0, wrong_tau = 0, wrong_sums = 0, wrong_entries = 0;
  for (int64_t row = 0; row < s.rows(); ++row) {
    stored += counts[row];
    if (!left_out.empty() && left_out[row] != 0) continue;
    const double expected_tau = oracle.tau[row];
    if (!std::isfinite(expected_tau)) {  // NaN: a score is NaN or +inf; +inf: no key and no sink
      wrong_tau += std::isnan(expected_tau) ? !std::isnan(tau[row]) : !(std::isinf(tau[row]) && tau[row] > 0);
      wrong_entries += counts[row] != 0;
      continue;
    }
    wrong_tau += !(std::abs(tau[row] - expected_tau) <= score_error);
    const double alpha = spec.normalizer.alpha_of(row / s.q_len % s.q_heads), beta = 1 / (alpha - 1);
    std::map<int32_t, double> expected, found;  // z - tau of each key
    for (int64_t i = p.row_offsets[row]; i < p.row_offsets[row + 1]; ++i)
      expected[p.columns[i]] = std::pow(p.values[i], alpha - 1);
    const double of_sink = (alpha - 1) * spec.sink_of(row / s.q_len % s.q_heads) - expected_tau;
    double sum = of_sink > 0 ? std::pow(of_sink, beta) : 0;
    for (int64_t i = offsets[row]; i < offsets[row] + counts[row]; ++i) {
      sum += std::pow(static_cast<double>(excess[i]), beta);
      wrong_entries += !found.emplace(columns[i], excess[i]).second || !(excess[i] > 0);
    }
    for (const auto& [key, u] : found) {
      const auto at = expected.find(key);
      wrong_entries += !(std::abs(u - (at == expected.end() ? 0 : at->second)) <= 2 * score_error);
    }
    for (const auto& [key, u] : expected) wrong_entries += found.count(key) == 0 && u > 2 * score_error;
    wrong_sums += !(std::abs(sum - 1) <= 1e-5);
  }
  CHECK(wrong_tau == 0);
  CHECK(wrong_sums == 0);
  CHECK(wrong_entries == 0);
  CHECK(stored == static_cast<int64_t>(used));
}

// Checks a store of `capacity` entries that is too small for the problem: rows without room are counted but
// left out entirely, and the output is the same as with room.
inline void check_small_store(const AttentionSpec& spec, Dtype dtype, const AttentionInputs<double>& inputs,
                              int64_t capacity, const Stream& stream, entmax::ForwardPath path) {
  const ForwardRun whole(spec, dtype, inputs, spec.shape.rows() * spec.shape.kv_len, stream, path);
  const ForwardRun small(spec, dtype, inputs, capacity, stream, path);
  CHECK(small.entries() == whole.entries());
  const auto counts = ForwardRun::host<int32_t>(small.counts, small.rows);
  CHECK(counts == ForwardRun::host<int32_t>(whole.counts, whole.rows));
  const auto offsets = ForwardRun::host<int64_t>(small.offsets, small.rows);
  int64_t left_out = 0;
  for (int64_t row = 0; row < small.rows; ++row) {
    left_out += offsets[row] < 0;
    CHECK(offsets[row] + (offsets[row] < 0 ? 0 : counts[row]) <= capacity);
  }
  CHECK(left_out > 0);
  CHECK(left_out < small.rows);
  const Tensor<double> a = small.out.to_host(), b = whole.out.to_host();
  CHECK(std::equal(a.data(), a.data() + a.size(), b.data()));
}

}  // namespace splash::gpu::testing
