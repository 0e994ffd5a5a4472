#pragma once
// Reads cases of a report back as parameters of their kinds.

#include <string>
#include <vector>

#include "experiments/runner/kind.h"
#include "report/report.h"

namespace splash::experiments {

// The parameters of a row of /results. Missing entries take their defaults. Throws ReportError if a column is
// absent, which means that the report holds no cases of that kind.
Parameters recorded_parameters(const report::Report& report, int64_t row,
                               const std::vector<ParameterInfo>& declared, const std::string& kind);

// The description of a parameter's column.
report::ColumnInfo column_info(const ParameterInfo& parameter);

// Why a parameter of a case's own experiment may be missing.
constexpr const char* kWithoutEffect = "the case's other parameters leave it without effect";

// A value as a numeric column holds it; flags are 1 and 0.
double number_of(const Value& value);

}  // namespace splash::experiments
