#pragma once
// What a variant's work amounts to, counted by running its trace: every block, every tile. Compiles without
// nvcc. For one head's 16384 queries and keys that is a millisecond; a plan does without.

#include "gpu/engine/variant.h"

namespace splash::gpu {

// `plan` is the variant's, of the same problem and device.
Work count_work(const Variant& variant, const AttentionSpec& spec, Dtype dtype, const Plan& plan,
                const DeviceInfo& device);

// (query, key) pairs that are visible and selected, over all batches and query heads; of the top k, as many
// as there are where no scores are equal. Throws InvalidArgument for significant_blocks: the data decides.
double selected_pairs(const AttentionSpec& spec);

}  // namespace splash::gpu
