#pragma once
// What a variant's declaration tells of a problem, as numbers for a report: work, and what simulated caches
// make of its accesses.

#include <map>
#include <optional>
#include <string>

#include "analysis/cache/simulated.h"
#include "experiments/runner/kind.h"
#include "experiments/runner/machine.h"
#include "gpu/engine/variant.h"

namespace splash::experiments {

// A variant planned for a GPU; `registers` and `static_shared` of the largest kernel as the compiler has
// them, 0 where they are not known.
struct PlannedVariant {
  const gpu::Variant& variant;
  const Parameters& parameters;
  const AttentionSpec& spec;  // of the parameters
  const gpu::Plan& plan;
  int registers = 0;
  int64_t static_shared = 0;
};

// useful_flops, executed_flops, executed_rate (of numbers["time_median"]), bytes counted.
void add_work(const gpu::Work& work, std::map<std::string, double>& numbers);

// More lines than this are not simulated: some forty seconds.
constexpr double kMostSimulatedLines = 6e8;

// Nothing where there would be more lines.
std::optional<analysis::SimulatedCase> simulate_variant(const PlannedVariant& planned, const gpu::Work& work,
                                                        const Machine& machine);

// Into columns of a report by name; NaN where there is nothing.
void add_simulated(const std::optional<analysis::SimulatedCase>& simulated,
                   std::map<std::string, double>& numbers);

// The file of data/machines that describes the device, if one does.
std::optional<Machine> described(const std::string& device);

// The GPU as a plan wants it.
gpu::DeviceInfo device_of(const Machine& machine);

}  // namespace splash::experiments
