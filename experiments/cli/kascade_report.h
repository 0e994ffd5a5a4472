#pragma once
// The report of a Kascade plan: a case per layer, and the similarities that the plan was made of.

#include <string>

#include "core/kascade_plan.h"
#include "cpu_ref/kascade/similarity.h"
#include "report/report.h"

namespace splash::cli {

// `inputs`: the captures' names and hashes, one a line.
report::Report kascade_report(const KascadePlan& plan, const cpu_ref::LayerSimilarity& similarity,
                              const std::string& inputs);

}  // namespace splash::cli
