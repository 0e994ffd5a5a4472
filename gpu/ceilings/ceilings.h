#pragma once
// What a device reaches where nothing is in the way: the roofs of its roofline. Compiles without nvcc.
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
  std::string method;  // how, or why not where there are no samples
  std::vector<double> samples;  // at least 20, in `units`; empty where the device or this build cannot do it
  double clock_hz = 0;          // of the multiprocessors while it ran
};

// Takes 2 to 4 seconds. Throws DeviceError: no such device, out of memory, a launch that failed.
std::vector<MeasuredCeiling> measure_ceilings(int device = 0);

}  // namespace splash::gpu
