#pragma once
// Claims with their verdicts, as table, Markdown and JSON.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/report/report.h"
#include "experiments/cli/console.h"

namespace splash::cli {

TextTable claims_table(
    const std::vector<analysis::ClaimResult>& claims);  // claim | theirs | ours [interval] | …
std::string claims_markdown(const std::string& title, const std::vector<analysis::ClaimResult>& claims);
nlohmann::json claims_json(const std::vector<analysis::ClaimResult>& claims);
std::string count_verdicts(
    const std::vector<analysis::ClaimResult>& claims);  // "12 reproduced, 5 refuted, …"

}  // namespace splash::cli
