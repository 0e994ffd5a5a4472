#pragma once
// Launches only the dense path, on rows that a test marks as crowded.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/attention_spec.h"
#include "core/tensor.h"
#include "gpu/engine/tensor.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/hopper/dense/dense.h"
#include "gpu/entmax/problem.h"
#include "gpu/entmax/schedule/gather.h"

namespace splash::gpu::testing {

using Marked = std::function<bool(int64_t row)>;  // which rows, counted over all heads, are crowded

// Device memory for one problem, and the launch.
struct Run {
  template <class T>
  Run(const AttentionSpec& spec, Dtype dtype, const AttentionInputs<T>& inputs, const Marked& marked,
      int64_t capacity, const Stream& on)
      : stream(on),
        dtype(dtype),
        q(DeviceTensor::from(on, dtype, inputs.q)),
        k(DeviceTensor::from(on, dtype, inputs.k)),
        v(DeviceTensor::from(on, dtype, inputs.v)),
        out(on, dtype, q.view().extents),
        rows(spec.shape.rows()),
        room(capacity),
        alpha(on, static_cast<int64_t>(spec.normalizer.alpha.size() * sizeof(float))),
        tau(on, rows * 4),
        used(on, 8),
        offsets(on, rows * 8),
        counts(on, rows * 4),
        columns(on, std::max<int64_t>(capacity, 1) * 4),
        excess(on, std::max<int64_t>(capacity, 1) * 4),
        list(on, rows * 4),
        next_share(on, 4) {
    const AttentionShape& s = spec.shape;
    const std::vector<float> alphas(spec.normalizer.alpha.begin(), spec.normalizer.alpha.end());
    alpha.upload(alphas.data(), alpha.bytes());
    p = entmax::problem_of(spec, {.q = q.view().data,
                                  .k = k.view().data,
                                  .v = v.view().data,
                                  .out = out.view().data,
                                  .alpha = static_cast<const float*>(alpha.data()),
                                  .tau = static_cast<float*>(tau.data())});
    p.next_share = static_cast<uint32_t*>(next_share.data());
    const int64_t words = entmax::row_mask_words(static_cast<int>(s.q_len));
    std::vector<uint32_t> bits(static_cast<size_t>(words * p.heads), 0);
    for (int64_t row = 0; row < rows; ++row) {
      if (marked(row))
        bits[static_cast<size_t>(row / s.q_len * words + row % s.q_len / 32)] |= 1u << row % s.q_len % 32;
    }
    marks = DeviceBuffer(on, static_cast<int64_t>(bits.size()) * 4);
    marks.upload(bits.data(), marks.bytes());
    list_counts = DeviceBuffer(on, p.heads * 4);
    for (DeviceBuffer* buffer : {&out.buffer(), &tau, &offsets, &counts, &columns, &excess, &list})
      buffer->fill(0xFF);
    if (capacity >= 0) {
      p.support = {.capacity = capacity,
                   .used = static_cast<unsigned long long*>(used.data()),
                   .offsets = static_cast<int64_t*>(offsets.data()),
                   .counts = static_cast<int32_t*>(counts.data()),
                   .columns = static_cast<int32_t*>(columns.data()),
                   .excess = static_cast<float*>(excess.data())};
    }
  }

  void launch() {
    used.fill(0);
    entmax::gather_rows(p,
                        {.masks = static_cast<const uint32_t*>(marks.data()),
                         .queries = static_cast<int*>(list.data()),
                         .counts = static_cast<int*>(list_counts.data())},
                        stream.handle());
    p.rows = {static_cast<const int*>(list.data()), static_cast<const int*>(list_counts.data())};
    entmax::hopper::launch_dense(p, dtype, stream.handle());
  }

  template <class T>
  static std::vector<T> host(const DeviceBuffer& buffer, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    buffer.download(values.data(), count * static_cast<int64_t>(sizeof(T)));
    return values;
  }

  const Stream& stream;
  Dtype dtype;
  entmax::ForwardProblem p;
  DeviceTensor q, k, v, out;
  int64_t rows, room;
  DeviceBuffer alpha, tau, used, offsets, counts, columns, excess, list, next_share, marks, list_counts;
};

}  // namespace splash::gpu::testing
