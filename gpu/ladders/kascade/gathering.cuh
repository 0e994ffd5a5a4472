#pragma once
// Rungs 5 and 6: the kernel of gpu/kascade/reuse.cuh as a variant.

#include "gpu/kascade/reuse.cuh"
#include "gpu/ladders/kascade/rung.cuh"

namespace splash::gpu::kascade {

inline Plan plan_gathering(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  const Problem p = Problem::of(spec, kTileRows);
  Plan plan{
      .tile = {
          .q = kTileRows, .k = kTileKeys<kLadderDim>, .stages = kStages<kLadderDim>, .instruction_q = 64}};
  with_kernel<Problem, kLadderDim>(spec, dtype, [&](auto kernel, int64_t shared_bytes) {
    plan.kernels = {{"attend_gathering", reinterpret_cast<const void*>(kernel),
                     std::min(p.items, device.multiprocessors), kThreads, shared_bytes}};
  });
  plan.unit = MathUnit::f16;
  return plan;
}

// Traces the gathering kernel alone, in the order in which a queue hands out items.
inline std::vector<KernelTrace> trace_gathering(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_items(spec, dtype, plan.kernels.back(), kTileRows,
                     {.tile_keys = kTileKeys<kLadderDim>,
                      .padded_dim = spec.shape.head_dim <= 64 ? 64 : 128,
                      .whole_tiles = true});
}

inline void launch_gathering(const AttentionSpec& spec, Dtype dtype, const KernelLaunch& launch,
                             const Arguments& arguments, int* queue) {
  with_kernel<Problem, kLadderDim>(spec, dtype, [&](auto kernel, int64_t shared_bytes) {
    kernel<<<static_cast<unsigned>(launch.blocks), kThreads, shared_bytes, arguments.stream>>>(
        Problem::of(spec, kTileRows, arguments), queue, Parts{});
  });
  check_launch(launch.name.c_str());
}

}  // namespace splash::gpu::kascade
