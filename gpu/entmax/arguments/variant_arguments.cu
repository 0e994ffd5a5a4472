#include "gpu/entmax/arguments/variant_arguments.h"

#include <algorithm>

#include "core/error.h"
#include "core/round.h"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax {
namespace {

constexpr int kMostAlphas = 256;
struct AlphaTable {
  float values[kMostAlphas];
};
__global__ void write_alphas(const __grid_constant__ AlphaTable table, int count, float* to) {
  wait_for_kernels_before();
  if (static_cast<int>(threadIdx.x) < count) to[threadIdx.x] = table.values[threadIdx.x];
}

}  // namespace

int64_t alpha_bytes(const AttentionSpec& spec) {
  return round_up(static_cast<int64_t>(spec.normalizer.alpha.size() * sizeof(float)), 256);
}

int64_t variant_workspace_bytes(const AttentionSpec& spec, Dtype dtype) {
  return alpha_bytes(spec) + forward_workspace_bytes(spec, dtype);
}

void require_alphas(const std::string& variant, const AttentionSpec& spec) {
  if (spec.normalizer.alpha.size() <= kMostAlphas) return;
  throw Unsupported(variant + " takes one alpha for all heads or at most " + std::to_string(kMostAlphas) +
                    ", not " + std::to_string(spec.normalizer.alpha.size()));
}

ForwardArguments forward_arguments(const AttentionSpec& spec, const Arguments& arguments, ForwardPath path) {
  auto* const alpha = static_cast<float*>(arguments.workspace);
  AlphaTable table{};
  const auto count = static_cast<int>(spec.normalizer.alpha.size());
  std::copy_n(spec.normalizer.alpha.begin(), count, table.values);
  launch("write_alphas", write_alphas, 1, kMostAlphas, arguments.stream, table, count, alpha);
  const auto heads = static_cast<int>(spec.shape.batch * spec.shape.q_heads);  // one table per head
  return {.q = arguments.q,
          .k = arguments.k,
          .v = arguments.v,
          .out = arguments.out,
          .alpha = alpha,
          .mask = {.q_positions = arguments.q_positions,
                   .k_positions = arguments.k_positions,
                   .q_tables = heads,
                   .k_tables = heads},
          .workspace = static_cast<char*>(arguments.workspace) + alpha_bytes(spec),
          .stream = arguments.stream,
          .path = path};
}

}  // namespace splash::gpu::entmax
