#pragma once
// The rates that this processor reaches with all threads when nothing hinders it: the roofs of the CPU's
// roofline.
//
//   for (const auto& ceiling : splash::cpu_ref::measure_ceilings())
//     fmt::print("{} {} in {}\n", ceiling.name, ceiling.dtype, ceiling.units);

#include <string>
#include <vector>

namespace splash::cpu_ref {

struct MeasuredCeiling {
  std::string name;    // "cpu fma", "cpu l1 read", "cpu l2 read", "cpu dram read", "cpu dram copy"
  std::string dtype;   // for fma "float32" or "float64", otherwise ""
  std::string units;   // "FLOP/s", "bytes/s"
  std::string method;  // how it was measured, or why there are no samples
  // In `units`, for all threads together. The fastest is the ceiling, because other programs only slow
  // samples down.
  std::vector<double> samples;
};

// Takes some 2 seconds, and up to 1 GiB while it runs. Uses as many threads as OpenMP has. Nothing else
// should run meanwhile. Throws std::bad_alloc.
std::vector<MeasuredCeiling> measure_ceilings();

}  // namespace splash::cpu_ref
