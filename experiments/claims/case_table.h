#pragma once
// A table of a report's cases: rows and columns are parameters, a cell is a statistic of one result over the
// cases that remain. Nothing is left out in silence: cells know how many cases they hold, and the table which
// parameters those cases differ in.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "report/report.h"

namespace splash::experiments {

struct CaseTableRequest {
  std::vector<std::string> rows, columns;  // names of parameters; columns may be empty
  std::string value;                       // a column of numbers; may be empty where cases are counted
  std::optional<Statistic> statistic = Statistic::median;  // nothing: the number of cases
  Filter where;                                            // of cases, as add_where() reads it
};

struct CaseCell {
  double value = report::kMissing;  // of the cases that have one
  int64_t cases = 0, without_value = 0;
};

struct CaseTable {
  std::vector<report::ColumnInfo> row_parameters, column_parameters;
  report::ColumnInfo value;  // units: of the cells
  // Numbers ascend, texts come as the cases do, a parameter that a case does not have comes last as "(none)".
  std::vector<std::vector<std::string>> row_keys, column_keys;  // each a text a parameter
  std::vector<std::vector<CaseCell>> cells;                     // [row][column]
  std::vector<std::string> varying;  // parameters that differ among the cases of some cell
};

// What "name=values" on the command line selects, by any column of one value a case: the filter's new entry.
// Values are written as parsed_values() tells; flags are true and false. Throws InvalidArgument.
void add_where(Filter& where, const report::Report& report, const std::string& assignment);

// Drops the other cases. Throws InvalidArgument, with what there is, if none is left.
void keep_cases(report::Report& report, const Filter& where);

// Throws InvalidArgument, one sentence with what is allowed, if a name is unknown or no case fits.
CaseTable table_of_cases(const report::Report& report, const CaseTableRequest& request);

}  // namespace splash::experiments
