#pragma once
// What backward's kernels multiply and ask of memory, counted from how many entries the support has: the data
// decides that, so it comes from a run. Compiles without nvcc.

#include <cstdint>
#include <vector>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::entmax {

// One kernel as enqueue_backward launches it. Its FLOPs are of the float32 units. dram_bytes: of tensors and
// of the stored support, each byte once; of the workspace nothing.
struct BackwardKernel {
  KernelLaunch launch;  // without a function
  KernelWork work;
};

// In order of launch, without dL/dalpha, for a store that grew to hold the entries. All rows are taken for
// stored and of at most 128 entries: kernels for longer rows, fuller columns and rows that forward leaves to
// dense products are launched, and counted as if they found nothing to do. `dense`: whether those of the
// dense products are launched (Hopper's path, head_dim up to kMostUnstoredHeadDim).
// Throws InvalidArgument where entries are negative.
std::vector<BackwardKernel> backward_kernels(const AttentionSpec& spec, Dtype dtype, int64_t entries,
                                             const DeviceInfo& device, bool dense);

// 2 d each a pair of the support: dP, dQ, dK and dV.
constexpr double backward_flops(double entries, double head_dim) {
  return 8 * entries * head_dim;
}

}  // namespace splash::gpu::entmax
