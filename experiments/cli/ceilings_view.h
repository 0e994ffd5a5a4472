#pragma once
// Ceilings as a table and as JSON.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "experiments/cli/console.h"
#include "report/report.h"

namespace splash::cli {

TextTable ceilings_table(
    const std::vector<report::Ceiling>& ceilings);  // measured [interval], data sheet, share
// One line per doubtful ceiling, for the readers of results that use it; empty if there is none.
std::string questioned_lines(const std::vector<report::Ceiling>& ceilings);
nlohmann::json ceilings_json(const std::vector<report::Ceiling>& ceilings);

}  // namespace splash::cli
