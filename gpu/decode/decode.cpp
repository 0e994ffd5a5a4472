#include "gpu/decode/decode.h"

#include <algorithm>
#include <string>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "gpu/decode/plan.h"
#include "gpu/entmax/schedule/launch.h"

namespace splash::gpu::decode {
namespace {

// Calls use(Kernels<T, kDim>{}) for the cache's type and head dimension.
template <class Use>
void visit_kernels(const Cache& cache, const Use& use) {
  const auto with_type = [&]<class T>(T /*type*/) {
    if (cache.head_dim == 64) use(Kernels<T, 64>{});
    if (cache.head_dim == 128) use(Kernels<T, 128>{});
    if (cache.head_dim == 256) use(Kernels<T, 256>{});
  };
  if (cache.fp8) {
    with_type(__nv_fp8_e4m3{});
  } else if (cache.dtype == Dtype::bf16) {
    with_type(__nv_bfloat16{});
  } else {
    with_type(__half{});
  }
}

Device current_device(const Cache& cache) {
  Device device{.multiprocessors = entmax::multiprocessors()};
  device.shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  // Twice a clock; kernels reach some 84 % of it.
  device.dram_rate = 0.84 * 2e3 * device_attribute(cudaDevAttrMemoryClockRate) *
                     device_attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  visit_kernels(cache, [&](auto kernels) {
    device.most_team = kernels.most_team();
    device.most_together = kernels.most_together();
    device.step_bytes = kernels.step_bytes(cache.bits);
    device.short_bytes = kernels.short_bytes(cache.bits, kWarps);
    device.few_short_bytes = kernels.short_bytes(cache.bits, kFewWarps);
  });
  return device;
}

}  // namespace

int64_t workspace_bytes(const Cache& cache, const PageTable& table, const StepInputs& inputs) {
  check_step(cache, table, inputs);
  return plan_step(cache, table, inputs, current_device(cache)).bytes;
}

void fill(const Cache& cache, const PageTable& table, const int32_t* from_lengths, int most_pages,
          StreamHandle stream) {
  check_cache(cache);
  const int pages = std::min(most_pages, table.width);
  if (cache.bits == 0 || table.batch == 0 || pages <= 0) return;
  visit_kernels(cache, [&](auto kernels) { kernels.fill(cache, table, from_lengths, pages, stream); });
}

void append(const Cache& cache, const PageTable& table, const RowTensor& keys, const RowTensor& values,
            int tokens, StreamHandle stream) {
  check_cache(cache);
  check_rows("new keys", keys);
  check_rows("new values", values);
  if (table.batch == 0 || tokens <= 0) return;
  visit_kernels(cache, [&](auto kernels) { kernels.append(cache, table, keys, values, tokens, stream); });
}

void decode(const Cache& cache, const PageTable& table, const StepInputs& inputs, const StepOutputs& outputs,
            void* workspace, int64_t bytes, StreamHandle stream, const Launched& launched) {
  check_step(cache, table, inputs);
  if (table.batch == 0) return;
  StepPlan plan = plan_step(cache, table, inputs, current_device(cache));
  if (bytes < plan.bytes)
    throw InvalidArgument("decode needs a workspace of " + std::to_string(plan.bytes) + " bytes, not " +
                          std::to_string(bytes));
  place_workspace(plan, workspace);
  plan.step.outputs = outputs;
  visit_kernels(cache, [&](auto kernels) { kernels.step(plan.step, stream, launched); });
}

}  // namespace splash::gpu::decode
