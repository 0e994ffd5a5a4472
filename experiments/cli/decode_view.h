#pragma once
// Steps of decode against DRAM, as tables and as JSON.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/decode_steps.h"

namespace splash::cli {

// The steps whose implementation starts with prefix and whose case id starts with case_id. Throws
// InvalidArgument if there is none, in a report that holds other steps and no kernels.
std::vector<analysis::StepReading> selected_steps(const report::Report& report, const std::string& prefix,
                                                  const std::string& case_id = "");

// Prints for each problem what its steps read, and how near they come to DRAM's ceiling.
void print_steps(const report::Report& report, const std::vector<analysis::StepReading>& steps);
nlohmann::json steps_json(const report::Report& report, const std::vector<analysis::StepReading>& steps);

// What each step's time goes into, the largest gain first.
void print_step_findings(const report::Report& report, const std::vector<analysis::StepReading>& steps);
nlohmann::json step_findings_json(const report::Report& report,
                                  const std::vector<analysis::StepReading>& steps);

}  // namespace splash::cli
