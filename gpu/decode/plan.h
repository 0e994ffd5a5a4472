#pragma once
// How a step is divided among warps, and where its workspace lies. Compiles without nvcc or CUDA.

#include "gpu/decode/decode.h"

namespace splash::gpu::decode {

// What a step's division depends on. least_team: blocks that a unit has at least; most_team: that it may have
// as a cluster, up to 16; most_together: that it may have where they meet at barriers. Powers of two.
// shared_bytes: of a multiprocessor; step_bytes: of a block, but for dynamic_bytes(); short_bytes: the same
// of a short step, 0 where none is to be taken;
// prefers_short: whether short steps are taken wherever they may be, for tests.
struct Device {
  int multiprocessors = 1, least_team = 1, most_team = 1, most_together = 1;
  int shared_bytes = 228 << 10, step_bytes = 84 << 10, short_bytes = 0, few_short_bytes = 0;
  bool prefers_short = false;
  double dram_rate = 2.8e12;  // bytes per second that a kernel reads, about
};

struct StepPlan {
  Step step{};  // its workspace is null until place_workspace()
  int64_t bytes = 0;
};

void check_rows(const char* name, const RowTensor& rows);  // strides and alignment

StepPlan plan_step(const Cache& cache, const PageTable& table, const StepInputs& inputs,
                   const Device& device);
void place_workspace(StepPlan& plan, void* workspace);

}  // namespace splash::gpu::decode
