#pragma once
// What both paths of forward begin with. Compiles without nvcc.

#include "gpu/entmax/forward.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

// Throws InvalidArgument where spec.mask has parts of which mask has no table.
void require_mask(const AttentionSpec& spec, const DeviceMask& mask);

// All but what lies in the workspace.
Problem problem_of(const AttentionSpec& spec, const ForwardArguments& arguments);

}  // namespace splash::gpu::entmax
