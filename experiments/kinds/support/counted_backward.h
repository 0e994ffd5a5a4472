#pragma once
// A call of forward and backward, counted: forward by its variant's declaration, backward from the recorded
// support.

#include <string>
#include <vector>

#include "experiments/runner/kind.h"
#include "gpu/engine/variant.h"
#include "report/report.h"

namespace splash::experiments {

// Rows with more entries may be left to dense products, of which no report tells the number.
constexpr double kMostCountedSupport = 32;

// Adds FLOPs, bytes, the plan and all launches to a call of pass forward_backward that was measured and whose
// support_mean is known and at most kMostCountedSupport; to others nothing, and it returns false. Registers
// and static shared memory stay unknown (0). Takes time_median and support_mean from the numbers.
bool add_training_counts(const gpu::Variant& variant, const Parameters& parameters,
                         const gpu::DeviceInfo& device, const std::vector<report::Ceiling>& ceilings,
                         CaseResult& result);

}  // namespace splash::experiments
