#include "experiments/runner/recorded.h"

#include <cmath>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::experiments {
namespace {

// The default if the column has no value.
Value value_at(const report::Column& column, std::size_t row, const ParameterInfo& info) {
  if (info.type == ParameterType::text)
    return column.texts[row].empty() ? info.default_value : Value(column.texts[row]);
  const double number = column.numbers[row];
  if (std::isnan(number)) return info.default_value;
  if (info.type == ParameterType::integer) {
    constexpr double kMost = 1LL << 53;  // larger whole numbers are not all exact in a double
    if (!(std::abs(number) <= kMost) || number != std::trunc(number)) {
      throw ReportError(fmt::format("case {} has {} {}; it must be an integer of at most 2^53", row + 1,
                                    info.name, number));
    }
    return static_cast<int64_t>(number);
  }
  if (info.type == ParameterType::flag) return number != 0;
  return number;
}

}  // namespace

Parameters recorded_parameters(const report::Report& report, int64_t row,
                               const std::vector<ParameterInfo>& declared, const std::string& kind) {
  Parameters parameters;
  for (const ParameterInfo& info : declared) {
    const report::Column* column = report.find(info.name);
    if (column == nullptr || column->info.is_text != (info.type == ParameterType::text) ||
        column->width != 1) {
      throw ReportError(
          fmt::format("there is no column '{}': the report holds no cases of the kind {}", info.name, kind));
    }
    parameters[info.name] = value_at(*column, static_cast<std::size_t>(row), info);
  }
  return parameters;
}

report::ColumnInfo column_info(const ParameterInfo& parameter) {
  report::ColumnInfo info;
  info.name = parameter.name;
  info.units = parameter.units.empty() ? "1" : parameter.units;
  info.long_name = parameter.long_name;
  info.formula = "set by the experiment's definition";
  if (parameter.type == ParameterType::flag) info.formula += "; 1 is true, 0 is false";
  info.is_text = parameter.type == ParameterType::text;
  info.is_parameter = true;
  return info;
}

double number_of(const Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  return std::get<double>(value);
}

}  // namespace splash::experiments
