#pragma once
// Checks that a kernel of this build runs on this GPU, and measures the GPU's memory. Compiles without nvcc.

#include <cstdint>

namespace splash::gpu {

struct SelfCheck {
  int64_t elements = 0;          // of the vector triad a = b + s * c
  int64_t mismatches = 0;        // elements of a that differ from the host's, bit for bit
  int64_t guard_overwrites = 0;  // elements past a's end that lost the poison written there
  int64_t copy_bytes = 0;        // one copy: bytes read and bytes written together
  double copy_seconds = 0;       // median of the timed copies, by CUDA events
  double copy_bytes_per_second = 0;

  bool passed() const { return mismatches == 0 && guard_overwrites == 0; }
};

// Takes at most 1 GiB of device memory. Throws DeviceError if there is no usable device or CUDA fails.
SelfCheck run_self_check(int device = 0);

}  // namespace splash::gpu
