#pragma once
// A bias of distances (core/distance_bias.h) in units of z, and the largest that a panel of keys can have.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/attention_spec.h"
#include "cpu_ref/attention/screening/tile.h"

namespace splash::cpu_ref::screening {

// Of one row. Key j has entry j - first_key, held inside the table.
struct BiasRow {
  const float* entries = nullptr;  // [count]; null: no bias
  const float* largest = nullptr;  // [count + kPanelKeys - 1]: of the kPanelKeys entries up to this one
  int64_t count = 0, first_key = 0;

  bool any() const { return entries != nullptr; }
  float of(int64_t key) const { return entries[std::clamp<int64_t>(key - first_key, 0, count - 1)]; }
  float largest_of_panel(int64_t panel_key) const {
    return largest[std::clamp<int64_t>(panel_key - first_key + kPanelKeys - 1, 0, count + kPanelKeys - 2)];
  }
};

// Of all heads.
class BiasTables {
 public:
  explicit BiasTables(const AttentionSpec& spec) : spec_(spec) {
    const int64_t n = spec.bias.distances;
    if (!spec.bias.any()) return;
    entries_.resize(spec.bias.table.size());
    largest_.resize(static_cast<size_t>(spec.shape.q_heads * (n + kPanelKeys - 1)));
    for (int64_t h = 0; h < spec.shape.q_heads; ++h) {
      const double gain = spec.normalizer.alpha_of(h) - 1;
      float* const entries = entries_.data() + h * n;
      for (int64_t i = 0; i < n; ++i) entries[i] = static_cast<float>(gain * spec.bias.table[h * n + i]);
      float* const largest = largest_.data() + h * (n + kPanelKeys - 1);
      for (int64_t i = 0; i < n + kPanelKeys - 1; ++i) {
        const int64_t begin = std::max<int64_t>(0, i - kPanelKeys + 1), end = std::min(i + 1, n);
        largest[i] = screening::largest(entries + begin, end - begin);
      }
    }
    for (const float x : entries_) magnitude_ = std::max(magnitude_, std::abs(x));
  }

  BiasRow row(int64_t q_head, int64_t query) const {
    if (entries_.empty()) return {};
    const int64_t n = spec_.bias.distances;
    const int64_t of_first_key = spec_.bias.distance(spec_.shape, query, 0) - spec_.bias.first;
    return {entries_.data() + q_head * n, largest_.data() + q_head * (n + kPanelKeys - 1), n, -of_first_key};
  }
  bool any() const { return !entries_.empty(); }
  float magnitude() const { return magnitude_; }

 private:
  const AttentionSpec& spec_;
  std::vector<float> entries_, largest_;
  float magnitude_ = 0;
};

}  // namespace splash::cpu_ref::screening
