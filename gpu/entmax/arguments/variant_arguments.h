#pragma once
// What the flagship's variants make of an engine's call. Compiles without nvcc.

#include <string>

#include "gpu/engine/variant.h"
#include "gpu/entmax/forward.h"

namespace splash::gpu::entmax {

// A variant's alphas come by value, the library's are in device memory: what they take of a workspace, which
// begins with them; and all of it, forward_workspace_bytes behind them.
int64_t alpha_bytes(const AttentionSpec& spec);
int64_t variant_workspace_bytes(const AttentionSpec& spec, Dtype dtype);

// Throws Unsupported where there are more alphas than a launch takes.
void require_alphas(const std::string& variant, const AttentionSpec& spec);

// Enqueues writing the alphas.
ForwardArguments forward_arguments(const AttentionSpec& spec, const Arguments& arguments, ForwardPath path);

}  // namespace splash::gpu::entmax
