#pragma once
// Counts a call of forward and backward: the forward from its variant's declaration, the backward from the
// recorded support.

#include <string>
#include <vector>

#include "experiments/runner/kind.h"
#include "gpu/engine/variant.h"
#include "report/report.h"

namespace splash::experiments {

// Mean support above which rows may be computed by dense products. No report says how many rows are.
constexpr double kMostCountedSupport = 32;

// Adds FLOPs, bytes, the plan and all launches to a measured call of pass forward_backward whose support_mean
// is at most kMostCountedSupport. For other calls it adds nothing and returns false. Registers and static
// shared memory stay unknown (0). Reads time_median and support_mean from the numbers.
bool add_training_counts(const gpu::Variant& variant, const Parameters& parameters,
                         const gpu::DeviceInfo& device, const std::vector<report::Ceiling>& ceilings,
                         CaseResult& result);

}  // namespace splash::experiments
