#pragma once
// Steps of decode by the kernels, run thread by thread on the CPU (simt/simt.h), without a GPU.

#include "gpu/tests/decode_cases.h"
#include "gpu/tests/simt_elements.h"

// One instance for all threads of a block, which are fibers of one thread.
#undef __shared__
#define __shared__ thread_local

#include "gpu/decode/kernels.cuh"
#include "gpu/decode/plan.h"

namespace splash::gpu::testing {

// T: of the cache; Row: of queries and outputs.
template <class T, int kDim, class Row = T>
StepResults run_with(const DecodeCase& c, const decode::Device& device, std::vector<uint32_t>* broad,
                     std::vector<int32_t>* recent) {
  const auto& q = c.inputs.q;
  const std::vector<T> keys = pool_of<T>(c, c.cache.keys, c.options.key_scale),
                       values = pool_of<T>(c, c.cache.values, c.options.value_scale);
  const std::vector<Row> queries = elements_of<Row>(q);
  std::vector<Row> out(queries.size(), static_cast<Row>(NAN));
  const float scales[2] = {c.options.key_scale, c.options.value_scale};
  std::vector<uint8_t> low_bit(
      static_cast<size_t>(decode::low_bit_bytes(device_cache(c, nullptr, nullptr, nullptr))) + 16, 0xFF);
  const std::vector<float> alpha(c.inputs.alpha.begin(), c.inputs.alpha.end()),
      scale(c.inputs.scale.begin(), c.inputs.scale.end());
  auto* aligned = low_bit.data() + (16 - reinterpret_cast<uintptr_t>(low_bit.data()) % 16) % 16;
  const decode::Cache cache = device_cache(c, keys.data(), values.data(), aligned, scales);
  const decode::PageTable table{c.cache.table.data(), c.cache.lengths.data(), static_cast<int>(c.cache.batch),
                                static_cast<int>(c.cache.width)};
  if (cache.bits > 0) decode::Kernels<T, kDim>::fill(cache, table, nullptr, table.width, nullptr);
  const decode::StepInputs inputs{.q = rows_of(c, const_cast<Row*>(queries.data())),
                                  .out = rows_of(c, out.data()),
                                  .q_heads = static_cast<int>(q.heads()),
                                  .q_len = static_cast<int>(q.length()),
                                  .alpha = alpha.data(),
                                  .scale = scale.data(),
                                  .alphas = static_cast<int>(alpha.size()),
                                  .scales = static_cast<int>(scale.size()),
                                  .window = c.options.window,
                                  .sinks = c.options.sinks,
                                  .broad = broad == nullptr ? nullptr : broad->data(),
                                  .recent = recent == nullptr ? nullptr : recent->data()};
  decode::check_step(cache, table, inputs);
  decode::StepPlan plan = decode::plan_step(cache, table, inputs, device);
  std::vector<unsigned char> workspace(static_cast<size_t>(plan.bytes) + 256, 0xFF);
  decode::place_workspace(plan,
                          workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256));
  StepResults results;
  results.short_warps = plan.step.short_warps;
  const auto rows = static_cast<size_t>(q.batch() * q.heads() * q.length());
  results.tau.assign(rows, -7);
  results.maximum.assign(rows, -7);
  results.support.assign(rows, -7);
  results.counts.assign(static_cast<size_t>(plan.step.units) * 4, -7);
  plan.step.outputs = {results.tau.data(), results.maximum.data(), results.support.data(),
                       results.counts.data()};
  decode::Kernels<T, kDim>::step(plan.step, nullptr, {});
  results.out = tensor_of(q.batch(), q.heads(), q.length(), q.dim(), out);
  return results;
}

}  // namespace splash::gpu::testing
