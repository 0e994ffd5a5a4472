#pragma once
// Report numbers from a variant's declaration on a problem: its work, and its accesses in simulated caches.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/machine.h"
#include "analysis/roofline.h"
#include "experiments/runner/kind.h"
#include "gpu/engine/variant.h"

namespace splash::experiments {

// What a forward's roof is computed from.
struct CountedForward {
  gpu::Work work{};
  std::string unit{};                        // of its products: product_unit()
  std::vector<analysis::Launch> launches{};  // planned_launches()
};

// Adds to a measured forward what its variant's declaration counts: useful_flops, executed_flops,
// executed_rate, bytes, exponentials, instruction_q and the simulated columns. The simulated columns are NaN
// if the machine is unknown or there are too many accesses. Reads time_median from the numbers, and registers
// and shared_bytes (static included) of the largest kernel.
CountedForward add_counts(const gpu::Variant& variant, const Parameters& parameters,
                          const gpu::DeviceInfo& device, const std::optional<analysis::Machine>& machine,
                          std::map<std::string, double>& numbers);

// The least time that the executed work can take: products at the measured rate of their unit, bytes at the
// measured bandwidths of L2 and DRAM. A memory level whose counted bytes exceed what `seconds` allows is left
// out.
double floor_seconds(const gpu::Work& work, const std::string& unit, double seconds,
                     const std::vector<report::Ceiling>& ceilings);

// The GPU in the form that a plan takes.
gpu::DeviceInfo device_of(const analysis::Machine& machine);

}  // namespace splash::experiments
