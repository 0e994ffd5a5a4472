#pragma once
// Keys transposed for the register tile, and the largest magnitudes of queries and keys.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/parallel.h"
#include "core/round.h"
#include "core/tensor.h"
#include "cpu_ref/attention/screening/tile.h"

namespace splash::cpu_ref::screening {

// The bits of |x| as an integer rise with |x|. Those of infinities and NaNs are the largest.
inline uint32_t magnitude_bits(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7fffffffu;
}

inline float largest_magnitude(const float* x, int64_t n) {
  uint32_t max = 0;
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) max = std::max(max, magnitude_bits(x[i]));
  return std::bit_cast<float>(max);
}

// [batch * kv_heads, panels, head_dim, kPanelKeys], with zeros past kv_len. Takes as much memory as K.
class PackedKeys {
 public:
  explicit PackedKeys(TensorView<const float> k)
      : panels_(ceil_div(k.length, kPanelKeys)),
        panel_size_(k.dim * kPanelKeys),
        data_(std::make_unique_for_overwrite<float[]>(k.batch * k.heads * panels_ * panel_size_)),
        magnitudes_(k.batch * k.heads * panels_) {
    parallel_for(k.batch * k.heads * panels_, 16,
                 [&](int64_t i) { magnitudes_[i] = pack(k, i / panels_, i % panels_); });
  }

  const float* panel(int64_t head, int64_t index) const {
    return data_.get() + (head * panels_ + index) * panel_size_;
  }

  // NaN or infinite if a key is.
  float magnitude() const {
    return largest_magnitude(magnitudes_.data(), static_cast<int64_t>(magnitudes_.size()));
  }

 private:
  float pack(const TensorView<const float>& k, int64_t head, int64_t panel) {
    float* out = data_.get() + (head * panels_ + panel) * panel_size_;
    const int64_t first = panel * kPanelKeys;
    const int64_t keys = std::min<int64_t>(kPanelKeys, k.length - first);
    const float* rows = k.data + (head * k.length + first) * k.dim;
    for (int64_t d = 0; d < k.dim; ++d) {
      for (int64_t j = 0; j < kPanelKeys; ++j)
        out[d * kPanelKeys + j] = j < keys ? rows[j * k.dim + d] : 0.0f;
    }
    return largest_magnitude(rows, keys * k.dim);
  }

  int64_t panels_, panel_size_;
  std::unique_ptr<float[]> data_;
  std::vector<float> magnitudes_;  // one per panel
};

}  // namespace splash::cpu_ref::screening
