#pragma once
// Turns the engine's arguments for a variant into forward's arguments. Compiles without nvcc.

#include <string>

#include "gpu/engine/variant.h"
#include "gpu/entmax/forward.h"

namespace splash::gpu::entmax {

// A variant's alphas come by value; forward reads them from device memory. So a variant's workspace begins
// with the alphas (alpha_bytes), followed by forward's workspace. variant_workspace_bytes: both together.
int64_t alpha_bytes(const AttentionSpec& spec);
int64_t variant_workspace_bytes(const AttentionSpec& spec, Dtype dtype);

// Throws Unsupported where there are more alphas (256) than one launch takes by value.
void require_alphas(const std::string& variant, const AttentionSpec& spec);

// Enqueues a kernel that writes the alphas to the workspace; returns what forward takes.
ForwardArguments forward_arguments(const AttentionSpec& spec, const Arguments& arguments, ForwardPath path);

}  // namespace splash::gpu::entmax
