#pragma once
// What both paths of forward begin with. Compiles without nvcc.

#include "gpu/entmax/forward.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

// Throws InvalidArgument where spec.mask has parts of which mask has no table.
void require_mask(const AttentionSpec& spec, const DeviceMask& mask);

// Throws InvalidArgument where spec has a k_keep for each head and the arguments have none.
void require_head_k_keep(const AttentionSpec& spec, const ForwardArguments& arguments);

// All but what lies in the workspace.
Problem problem_of(const AttentionSpec& spec, const ForwardArguments& arguments);

}  // namespace splash::gpu::entmax
