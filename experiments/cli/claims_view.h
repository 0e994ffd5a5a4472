#pragma once
// Claims with their verdicts, as table, Markdown and JSON.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "experiments/cli/console.h"
#include "report/report.h"

namespace splash::cli {

TextTable claims_table(
    const std::vector<report::ClaimResult>& claims);  // claim | theirs | ours [interval] | …
std::string claims_markdown(const std::string& title, const std::vector<report::ClaimResult>& claims);
nlohmann::json claims_json(const std::vector<report::ClaimResult>& claims);
std::string count_verdicts(const std::vector<report::ClaimResult>& claims);  // "12 reproduced, 5 refuted, …"

}  // namespace splash::cli
