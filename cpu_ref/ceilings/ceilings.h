#pragma once
// What this processor reaches where nothing is in the way, with all threads at work: the roofs of the CPU's
// roofline.
//
//   for (const auto& ceiling : splash::cpu_ref::measure_ceilings())
//     fmt::print("{} {} in {}\n", ceiling.name, ceiling.dtype, ceiling.units);

#include <string>
#include <vector>

namespace splash::cpu_ref {

struct MeasuredCeiling {
  std::string name;    // "cpu fma", "cpu l1 read", "cpu l2 read", "cpu dram read", "cpu dram copy"
  std::string dtype;   // of fma: "float32", "float64"; else ""
  std::string units;   // "FLOP/s", "bytes/s"
  std::string method;  // how, or why not where there are no samples
  // In `units`, of all threads together. The fastest is the ceiling: whatever else runs on the machine only
  // slows samples down.
  std::vector<double> samples;
};

// Takes some 2 seconds, and up to 1 GiB while it runs. Threads: as OpenMP has them. Nothing else should run.
// Throws std::bad_alloc.
std::vector<MeasuredCeiling> measure_ceilings();

}  // namespace splash::cpu_ref
