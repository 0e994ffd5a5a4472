#pragma once
// What enqueue_forward checks before it chooses a path, in addition to the checks that forward.h declares.
// Compiles without nvcc.

#include <string>

#include "gpu/entmax/forward.h"

namespace splash::gpu::entmax {

// What keeps the problem from Hopper's path, in words ("a soft cap"); empty where nothing does.
// given_thresholds: whether there are tau_offsets.
std::string not_on_hopper(const AttentionSpec& spec, Dtype dtype, bool given_thresholds = false);

// Throws InvalidArgument where spec.mask has packed sequences, positions or pairs and `mask` has no table of
// them.
void require_mask(const AttentionSpec& spec, const DeviceMask& mask);

// Throws InvalidArgument where spec has sinks or a bias and there is no table of them, or drops probabilities
// and there is no seed.
void require_modifications(const AttentionSpec& spec, const float* sinks, const uint64_t* seed,
                           const float* bias);

// Throws InvalidArgument where spec has a k_keep per head and the arguments have none.
void require_head_k_keep(const AttentionSpec& spec, const ForwardArguments& arguments);

}  // namespace splash::gpu::entmax
