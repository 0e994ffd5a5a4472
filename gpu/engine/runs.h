#pragma once
// Copies between strided parts of device memory. Compiles without nvcc.

#include <cstdint>
#include <span>

#include "gpu/engine/memory.h"

namespace splash::gpu {

// `count` runs of `bytes` each, `to_apart` and `from_apart` bytes from one to the next.
struct Runs {
  void* to;
  int64_t to_apart;
  const void* from;
  int64_t from_apart, bytes, count;
};

// Enqueued, one copy each. Copy engines work where one side is another GPU's memory: the SMs are left to
// kernels. Throws DeviceError.
void copy_runs(std::span<const Runs> all, StreamHandle stream);

// The same, enqueued as one kernel for each kMostTogether: where a call for each takes the host too long, and
// all is this GPU's memory.
constexpr int kMostTogether = 48;
void copy_runs_together(std::span<const Runs> all, StreamHandle stream);

}  // namespace splash::gpu
