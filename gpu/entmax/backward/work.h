#pragma once
// Counts the FLOPs and memory traffic of backward's kernels from the number of the support's entries. The
// data decides that number, so it comes from a run. Compiles without nvcc.

#include <cstdint>
#include <vector>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::entmax {

// One kernel as enqueue_backward launches it. Its FLOPs run on the float32 units. dram_bytes counts tensors
// and the stored support, each byte once, and nothing of the workspace.
struct BackwardKernel {
  KernelLaunch launch;  // without a function
  KernelWork work;
};

// In order of launch, without dL/dalpha, for a store that grew to hold the entries. The count assumes that
// all rows are stored and have 2 to 128 entries, and keys few: rows with one read less, and keys with more
// than 24 look up where their slices begin. The kernels for longer rows, for keys with many entries and for
// dense products are launched, too, and counted as if they found nothing to do. `dense`: whether the kernels
// for dense products are launched (Hopper's path, head_dim up to kMostUnstoredHeadDim). Throws
// InvalidArgument where entries is negative.
std::vector<BackwardKernel> backward_kernels(const AttentionSpec& spec, Dtype dtype, int64_t entries,
                                             const DeviceInfo& device, bool dense);

// 2 head_dim per entry of the support for each of dP, dQ, dK and dV.
constexpr double backward_flops(double entries, double head_dim) {
  return 8 * entries * head_dim;
}

}  // namespace splash::gpu::entmax
