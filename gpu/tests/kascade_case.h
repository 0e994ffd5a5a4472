#pragma once
// Problems for Kascade's kernels, on the host and on the device, and the keys that an anchor finds in them.

#include <algorithm>
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "core/kascade_plan.h"
#include "core/random.h"
#include "core/workload.h"
#include "gpu/engine/tensor.h"
#include "gpu/kascade/kascade.h"

namespace splash::gpu::testing {

constexpr int64_t kTile = 32;

struct KascadeCase {
  AttentionSpec spec;
  Dtype dtype = Dtype::bf16;
  KascadeBudget budget{.tile = kTile, .share = 0.1, .least_keys = 20};
  Workload workload{};
  int64_t workspace_lists = 0;  // that the workspace has room for; 0: as many as pay
  bool gives_normalizers = false;
  bool in_8_bits = false;
  std::vector<int32_t> starts{};  // [batch]: the first key that a sequence sees; empty: 0

  bool by_steps() const {
    return spec.shape.q_len <= kTile && spec.shape.group() * spec.shape.q_len <= kTile;
  }
  int64_t start(int64_t batch) const { return starts.empty() ? 0 : starts[batch]; }
  int64_t tiles() const { return ceil_div(spec.shape.q_len, kTile); }
  std::vector<int32_t> counts() const {  // of each list
    std::vector<int32_t> all;
    for (int64_t head = 0; head < spec.shape.batch * spec.shape.kv_heads; ++head) {
      const int64_t kv_len = spec.shape.kv_len - start(head / spec.shape.kv_heads);
      for (const int32_t of_tile : budget.keys_of_tiles(spec.shape.q_len, kv_len)) all.push_back(of_tile);
    }
    return all;
  }
  int64_t most() const {  // a longer sequence keeps more
    const int64_t start = starts.empty() ? 0 : std::ranges::min(starts);
    return std::ranges::max(budget.keys_of_tiles(spec.shape.q_len, spec.shape.kv_len - start));
  }
};

inline KascadeCase case_of(const AttentionShape& shape) {
  return {.spec = {.shape = shape, .normalizer = {NormalizerKind::softmax, {1.5}}, .mask = {.causal = true}}};
}

// Sequences of all lengths: without padding, with one key, and between.
inline std::vector<int32_t> some_starts(const AttentionShape& shape) {
  const auto kv_len = static_cast<int32_t>(shape.kv_len);
  const int32_t some[] = {kv_len / 3 + 1, kv_len - 1, 0, std::min(17, kv_len - 1)};
  std::vector<int32_t> starts;
  for (int64_t batch = 0; batch < shape.batch; ++batch) starts.push_back(some[batch % 4]);
  return starts;
}

inline AttentionInputs<double> rounded_inputs(const KascadeCase& c) {
  auto inputs = make_inputs<double>(c.workload, c.spec.shape);
  for (Tensor<double>* tensor : {&inputs.q, &inputs.k, &inputs.v}) {
    for (int64_t i = 0; i < tensor->size(); ++i) tensor->data()[i] = round_to(c.dtype, tensor->data()[i]);
  }
  return inputs;
}

inline DeviceBuffer on_device(const Stream& stream, const std::vector<int32_t>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
  DeviceBuffer buffer(stream, std::max<int64_t>(bytes, 1));
  buffer.upload(values.data(), bytes);
  return buffer;
}

// Of each row log(sum of exp(score)); -inf without keys.
inline Tensor<float> normalizers(const AttentionSpec& spec, const AttentionInputs<double>& inputs) {
  const AttentionShape& s = spec.shape;
  Tensor<float> of_rows(s.batch, s.q_heads, s.q_len, 1);
  for (int64_t row = 0; row < of_rows.size(); ++row) {
    const int64_t batch = row / (s.q_heads * s.q_len), head = row / s.q_len % s.q_heads, i = row % s.q_len;
    std::vector<double> scores;
    for (int64_t j = 0; j <= std::min(i + s.kv_len - s.q_len, s.kv_len - 1); ++j) {
      double dot = 0;
      for (int64_t d = 0; d < s.head_dim; ++d)
        dot += inputs.q.row(batch, head, i)[d] * inputs.k.row(batch, head / s.group(), j)[d];
      scores.push_back(dot * spec.score_scale());
    }
    const double largest = scores.empty() ? 0.0 : std::ranges::max(scores);
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - largest);
    of_rows.data()[row] = static_cast<float>(largest + std::log(sum));
  }
  return of_rows;
}

// Keys in 8 bits on the device, with room behind the keys, all of which is `poison` at first.
struct DeviceKeys {
  DeviceBuffer codes, scales;
  int64_t pitch = 0;

  DeviceKeys(const Stream& stream, const AttentionShape& s, unsigned char poison)
      : pitch(s.kv_len / 16 * 16 + 48) {
    const int64_t keys = s.batch * s.kv_heads * pitch;
    codes = DeviceBuffer(stream, keys * s.head_dim);
    scales = DeviceBuffer(stream, keys * int64_t{sizeof(float)});
    codes.fill(poison);
    scales.fill(poison);
  }

  void write(const KascadeCase& c, const void* k, int64_t begin, const Stream& stream) {
    kascade::quantize_keys(c.spec, c.dtype,
                           {.k = k,
                            .k8 = static_cast<int8_t*>(codes.data()),
                            .k8_scales = static_cast<float*>(scales.data()),
                            .pitch = pitch,
                            .begin = begin,
                            .stream = stream.handle()});
  }
};

// Twice, on memory of two poisons: the lists must have the same bits. attended: gets what attention to all
// keys leaves, where not null.
inline std::vector<int32_t> find(const KascadeCase& c, const AttentionInputs<double>& inputs,
                                 Tensor<double>* attended = nullptr) {
  const Stream stream;
  const DeviceTensor q = DeviceTensor::from(stream, c.dtype, inputs.q);
  const DeviceTensor k = DeviceTensor::from(stream, c.dtype, inputs.k);
  const DeviceBuffer counts = on_device(stream, c.counts()), starts = on_device(stream, c.starts);
  const AttentionShape& s = c.spec.shape;
  std::vector<int32_t> keys(s.batch * s.kv_heads * c.tiles() * c.most());
  DeviceBuffer lists = on_device(stream, keys);
  const bool attends = attended != nullptr;
  const DeviceTensor v = attends ? DeviceTensor::from(stream, c.dtype, inputs.v) : DeviceTensor();
  DeviceTensor out(stream, c.dtype, q.view().extents);
  const int64_t all = kascade::find_bytes(c.spec, attends),
                least = kascade::least_find_bytes(c.spec, attends);
  const int64_t lists_of_case = s.batch * s.kv_heads * c.tiles();
  const int64_t bytes = c.workspace_lists > 0 ? least + (c.workspace_lists - 1) * (all - least) /
                                                            std::max<int64_t>(1, lists_of_case - 1)
                                              : all;
  DeviceBuffer workspace(stream, bytes);
  const Tensor<float> of_rows = c.gives_normalizers ? normalizers(c.spec, inputs) : Tensor<float>();
  DeviceBuffer given(stream, std::max<int64_t>(1, of_rows.size()) * int64_t{sizeof(float)});
  given.upload(of_rows.data(), of_rows.size() * int64_t{sizeof(float)});
  std::vector<int32_t> first;
  for (const int poison : {0xFF, 0x7F}) {
    lists.fill(poison);
    workspace.fill(poison);
    out.buffer().fill(poison);
    DeviceKeys in_8_bits(stream, s, poison);
    if (c.by_steps()) in_8_bits.write(c, k.view().data, 0, stream);
    kascade::find_keys(
        c.spec, c.dtype,
        {.q = q.view().data,
         .k = c.in_8_bits && c.by_steps() ? nullptr : k.view().data,
         .counts = static_cast<const int32_t*>(counts.data()),
         .keys = static_cast<int32_t*>(lists.data()),
         .most = c.most(),
         .starts = c.starts.empty() ? nullptr : static_cast<const int32_t*>(starts.data()),
         .v = v.view().data,
         .out = out.view().data,
         .k8 = c.in_8_bits ? static_cast<const int8_t*>(in_8_bits.codes.data()) : nullptr,
         .k8_scales = static_cast<const float*>(in_8_bits.scales.data()),
         .k8_pitch = in_8_bits.pitch,
         .normalizers = c.gives_normalizers ? static_cast<const float*>(given.data()) : nullptr,
         .workspace = workspace.data(),
         .workspace_bytes = bytes,
         .stream = stream.handle()});
    lists.download(keys.data(), lists.bytes());
    if (!first.empty()) CHECK(keys == first);
    first = keys;
  }
  if (attends) *attended = out.to_host();
  return keys;
}

}  // namespace splash::gpu::testing
