#pragma once
// The CPU implementations against the processor's ceilings, as tables and as JSON.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/cpu_roofline.h"

namespace splash::cli {

// The cases whose implementation starts with prefix.
std::vector<analysis::CpuCase> selected_cpu_cases(const report::Report& report, const std::string& prefix);

// Prints the processor's ceilings, and for each problem a table that compares its cases with them.
void print_cpu_cases(const report::Report& report, const std::vector<analysis::CpuCase>& cases);
nlohmann::json cpu_cases_json(const report::Report& report, const std::vector<analysis::CpuCase>& cases);

// What bounds each case, the largest gain that its removal could bring, and why.
void print_cpu_findings(const report::Report& report, const std::vector<analysis::CpuCase>& cases);
nlohmann::json cpu_findings_json(const report::Report& report, const std::vector<analysis::CpuCase>& cases);

}  // namespace splash::cli
