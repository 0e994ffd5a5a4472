#pragma once
// Measures the rate that each part of a device reaches at best: the roofs of its roofline. Compiles without
// nvcc.
//
//   for (const auto& ceiling : splash::gpu::measure_ceilings())
//     fmt::print("{} {} in {}\n", ceiling.name, ceiling.dtype, ceiling.units);

#include <string>
#include <vector>

namespace splash::gpu {

struct MeasuredCeiling {
  // "dram copy", "dram read", "l2 read", "shared read", "fma", "exponentials", "tensor", "launch", "graph
  // node"
  std::string name;
  std::string dtype;   // of fma and tensor: "float32", "tf32", "float16", "bfloat16", "float8_e4m3"; else ""
  std::string units;   // "bytes/s", "FLOP/s", "1/s", "s"
  std::string method;  // how it was measured; without samples: why it was not
  std::vector<double> samples;  // in `units`; 31, or 10 at least if calls take long; empty if not available
  double clock_hz = 0;          // SM clock while it ran, or right after for kernels that record none
};

// Takes 2 to 4 seconds. Throws DeviceError if there is no such device, memory does not suffice or a launch
// fails.
std::vector<MeasuredCeiling> measure_ceilings(int device = 0);

}  // namespace splash::gpu
