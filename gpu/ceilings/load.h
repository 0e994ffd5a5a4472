#pragma once
// The loads: for each ceiling, the kernel that measures it and the work that one call does. Compiles without
// nvcc.

#include <functional>
#include <string>

#include "gpu/ceilings/kernels.h"
#include "gpu/device.h"

namespace splash::gpu {

struct Load {
  std::string name, dtype, units, method;
  double work = 0;                  // per call: bytes, FLOP or exponentials; 0: its time is the result
  std::function<void()> enqueue{};  // owns its buffers; empty if the device cannot run it
  bool keeps_span = true;           // each call writes the context's span
};

struct LoadContext {
  const Stream& stream;
  const DeviceInfo& device;
  ClockSpan* span;
};

Load copy_load(const LoadContext& context);       // DRAM, by a kernel
Load copy_call_load(const LoadContext& context);  // DRAM, by cudaMemcpyAsync
Load read_load(const LoadContext& context);       // DRAM
Load l2_load(const LoadContext& context);
Load shared_load(const LoadContext& context);
Load exponentials_load(const LoadContext& context);
Load fma_load(const LoadContext& context);
Load tensor_load(const LoadContext& context,
                 const std::string& dtype);  // tf32, float16, bfloat16, float8_e4m3
Load empty_load(const LoadContext& context);

}  // namespace splash::gpu
