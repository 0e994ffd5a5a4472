#pragma once
// Counts a variant's work by running its trace: every block, every tile. That takes about a millisecond for
// one head of 16384 queries and keys; making a plan does not need it. Compiles without nvcc.

#include "gpu/engine/variant.h"

namespace splash::gpu {

// `plan` is the variant's plan for the same problem and device.
Work count_work(const Variant& variant, const AttentionSpec& spec, Dtype dtype, const Plan& plan,
                const DeviceInfo& device);

// (query, key) pairs that are visible and selected, over all batches and query heads. For top k it assumes
// that no scores are equal. Throws InvalidArgument for significant_blocks, because there the data decides.
double selected_pairs(const AttentionSpec& spec);

}  // namespace splash::gpu
