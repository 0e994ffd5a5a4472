#pragma once
// Which keys a row sees, where it sees a range of them. Compiles without nvcc.

#include <cstdint>

#include "core/host_device.h"

namespace splash::gpu::entmax {

// The keys from begin to below end; none where end is at most begin.
struct alignas(8) KeyRange {
  int begin, end;
};

// Problem: with mask, window, reach and kv_len (problem.h, backward/dense/dense.h). Of a head's rows, neither
// begin nor end ever falls from one row to the next.
template <class Problem>
SPLASH_HOST_DEVICE KeyRange range_of(const Problem& p, int query) {
  if (p.mask.ranges != nullptr) return reinterpret_cast<const KeyRange*>(p.mask.ranges)[query];
  const int64_t end = int64_t{query} + p.reach;  // may pass 32 bits
  const int64_t begin = p.window > 0 && end > p.window ? end - p.window : 0;
  return {static_cast<int>(begin), static_cast<int>(end < 0 ? 0 : end < p.kv_len ? end : p.kv_len)};
}

}  // namespace splash::gpu::entmax
