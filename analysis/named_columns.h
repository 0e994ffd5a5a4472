#pragma once
// Reads the columns of a report by name and row.

#include <cstdint>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "core/checked.h"
#include "core/error.h"
#include "report/report.h"

namespace splash::analysis {

// Throws ReportError if a column is missing or holds something else, unless a function's comment says
// otherwise.
class NamedColumns {
 public:
  explicit NamedColumns(const report::Report& report) : report_(report) {}

  const std::string& text(const char* name, int64_t row) const {
    return column(name, true).texts[static_cast<std::size_t>(row)];
  }
  double number(const char* name, int64_t row) const {
    return column(name, false).numbers[static_cast<std::size_t>(row)];
  }
  // A whole number; 0 if it is missing.
  int64_t count(const char* name, int64_t row, int64_t most = std::numeric_limits<int64_t>::max()) const {
    const double value = number(name, row);
    const auto whole = checked_count(std::isnan(value) ? 0 : value);
    if (whole && *whole <= most) return *whole;
    throw ReportError(fmt::format("the column '{}' holds {} where a whole number is needed", name, value));
  }
  int small_count(const char* name, int64_t row) const {
    return static_cast<int>(count(name, row, std::numeric_limits<int>::max()));
  }
  // These give NaN and "" if there is no such column.
  double known_number(const char* name, int64_t row) const {
    return report_.find(name) == nullptr ? std::numeric_limits<double>::quiet_NaN() : number(name, row);
  }
  std::string known_text(const char* name, int64_t row) const {
    return report_.find(name) == nullptr ? "" : text(name, row);
  }

 private:
  const report::Column& column(const char* name, bool is_text) const {
    const report::Column* found = report_.find(name);
    if (found == nullptr || found->info.is_text != is_text || found->width != 1) {
      throw ReportError(fmt::format(
          "there is no column '{}': the report holds no cases of the kind gpu-attention to analyse", name));
    }
    return *found;
  }

  const report::Report& report_;
};

}  // namespace splash::analysis
