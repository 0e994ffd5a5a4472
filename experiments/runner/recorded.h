#pragma once
// Cases of a report as parameters of their kinds.

#include <string>
#include <vector>

#include "experiments/runner/kind.h"
#include "report/report.h"

namespace splash::experiments {

// The parameters of a row of /results; what is missing there has its default. Throws ReportError where a
// column is absent: the report holds no cases of that kind.
Parameters recorded_parameters(const report::Report& report, int64_t row,
                               const std::vector<ParameterInfo>& declared, const std::string& kind);

// How the column of a parameter is described.
report::ColumnInfo column_info(const ParameterInfo& parameter);

// Why a parameter of a case's own experiment may be missing.
constexpr const char* kWithoutEffect = "the case's other parameters leave it without effect";

// The number that a column of numbers holds for a value; flags are 1 and 0.
double number_of(const Value& value);

}  // namespace splash::experiments
