#pragma once
// Measures the sparsity of exact entmax attention on a GPU from the support that forward stores.

#include <cstdint>
#include <span>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "cpu_ref/attention/forward.h"
#include "experiments/runner/kind.h"
#include "gpu/engine/tensor.h"

namespace splash::experiments {

// Marks the 64 x 64 tiles that hold an entry. Row r of [batch, q_heads, q_len] has the keys
// columns[offsets[r]], ..., columns[offsets[r] + counts[r] - 1], in any order.
cpu_ref::BlockMap support_blocks(const AttentionSpec& spec, std::span<const int64_t> offsets,
                                 std::span<const int32_t> counts, std::span<const int32_t> columns);

// Sets support_mean and, if the support has at most 2^28 entries, block_sparsity_64. Runs forward twice, with
// its output in `out`, and waits for it. Throws OutOfDeviceMemory, and what enqueue_forward throws.
void add_support(const AttentionSpec& spec, Dtype dtype, const gpu::DeviceTensorView& q,
                 const gpu::DeviceTensorView& k, const gpu::DeviceTensorView& v,
                 const gpu::DeviceTensorView& out, const gpu::Stream& stream, CaseResult& result);

}  // namespace splash::experiments
