#pragma once
// What a variant's declaration tells of a problem, as numbers for a report: work, and what simulated caches
// make of its accesses.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/machine.h"
#include "analysis/roofline.h"
#include "experiments/runner/kind.h"
#include "gpu/engine/variant.h"

namespace splash::experiments {

// What a forward's roof follows from.
struct CountedForward {
  gpu::Work work{};
  std::string unit{};                        // of its products: product_unit()
  std::vector<analysis::Launch> launches{};  // planned_launches()
};

// Adds to the numbers of a measured forward what its variant's declaration tells: useful_flops,
// executed_flops, executed_rate, bytes and exponentials counted, instruction_q, and what simulated caches
// make of its accesses, NaN where the machine is not known or there would be too many lines. Takes
// time_median, and registers and shared_bytes (static ones, too) of the largest kernel, from the numbers.
CountedForward add_counts(const gpu::Variant& variant, const Parameters& parameters,
                          const gpu::DeviceInfo& device, const std::optional<analysis::Machine>& machine,
                          std::map<std::string, double>& numbers);

// The least time that the work as executed can take: products at the measured rate of their unit, bytes at
// the measured bandwidths of L2 and DRAM, but of those of which more is counted than `seconds` allows.
double floor_seconds(const gpu::Work& work, const std::string& unit, double seconds,
                     const std::vector<report::Ceiling>& ceilings);

// The file of data/machines that describes the device, if one does.
std::optional<analysis::Machine> described(const std::string& device);

// The GPU as a plan wants it.
gpu::DeviceInfo device_of(const analysis::Machine& machine);

}  // namespace splash::experiments
