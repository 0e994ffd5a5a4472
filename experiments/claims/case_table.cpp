#include "experiments/claims/case_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "core/error.h"
#include "core/suggest.h"
#include "experiments/claims/measure.h"
#include "experiments/runner/value.h"

namespace splash::experiments {
namespace {

using report::Column;

bool is_single(const Column& column) {
  return column.info.dimension.empty() && column.width == 1;
}

bool is_case_parameter(const Column& column) {
  return is_single(column) && (column.info.is_parameter || column.info.name == "experiment");
}

bool is_value(const Column& column) {
  return is_single(column) && !column.info.is_text;
}

template <class Suits>
const Column& find_column(const report::Report& report, const std::string& name, const char* what,
                          Suits&& suits) {
  std::vector<std::string> allowed;
  for (const Column& column : report.results) {
    if (!suits(column)) continue;
    if (column.info.name == name) return column;
    allowed.push_back(column.info.name);
  }
  throw InvalidArgument(fmt::format("the report has no {} '{}'{}", what, name, suggestion(name, allowed)));
}

std::string text_at(const Column& column, std::size_t row) {
  if (column.info.is_text) return column.texts[row].empty() ? "(none)" : column.texts[row];
  return std::isnan(column.numbers[row]) ? "(none)" : to_text(column.numbers[row]);
}

// Some parameters, and the different combinations of their values in order.
class Keys {
 public:
  Keys(const report::Report& report, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      columns_.push_back(&find_column(report, name, "parameter", is_case_parameter));
      infos.push_back(columns_.back()->info);
    }
    seen_.resize(names.size());
  }

  void add(std::size_t row) { places_[ranks_at(row)] = row; }

  // Numbers the combinations; returns their texts.
  std::vector<std::vector<std::string>> finish() {
    std::vector<std::vector<std::string>> texts;
    for (auto& [ranks, place] : places_) {
      texts.emplace_back();
      for (const Column* column : columns_) texts.back().push_back(text_at(*column, place));
      place = texts.size() - 1;
    }
    return texts;
  }
  std::size_t place_of(std::size_t row) { return places_.at(ranks_at(row)); }

  std::vector<report::ColumnInfo> infos;

 private:
  std::vector<double> ranks_at(std::size_t row) {
    std::vector<double> ranks;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const Column& column = *columns_[i];
      double rank = std::numeric_limits<double>::infinity();
      if (!column.info.is_text && !std::isnan(column.numbers[row])) rank = column.numbers[row];
      if (column.info.is_text && !column.texts[row].empty())
        rank = static_cast<double>(seen_[i].try_emplace(column.texts[row], seen_[i].size()).first->second);
      ranks.push_back(rank);
    }
    return ranks;
  }

  std::vector<const Column*> columns_;
  std::vector<std::map<std::string, std::size_t>> seen_;  // texts in the order of the cases
  std::map<std::vector<double>, std::size_t> places_;
};

[[noreturn]] void refuse_nothing(const report::Report& report, const Filter& where) {
  constexpr std::size_t kShown = 12;
  std::string asked;
  for (const auto& [name, values] : where) {
    std::string wanted;
    for (const Value& value : values) wanted += (wanted.empty() ? "" : " or ") + to_text(value);
    asked += fmt::format("{}{} {}", asked.empty() ? "" : " and ", name, wanted);
    bool found = false;
    std::vector<std::string> there;
    const Column& column = *report.find(name);
    for (std::size_t row = 0; row < static_cast<std::size_t>(report.cases()); ++row) {
      found = found || fits(report, {{name, values}}, row);
      const std::string text = text_at(column, row);
      if (std::find(there.begin(), there.end(), text) == there.end()) there.push_back(text);
    }
    if (found) continue;
    const std::size_t more = there.size() > kShown ? there.size() - kShown : 0;
    if (more > 0) there.resize(kShown);
    if (more > 0) there.push_back(fmt::format("{} more", more));
    throw InvalidArgument(
        fmt::format("no case of the report has {} {}; there are {}", name, wanted, list_words(there)));
  }
  throw InvalidArgument(asked.empty() ? "the report has no cases"
                                      : fmt::format("no case of the report has {} at once", asked));
}

// Which other parameters differ among the cases of a cell.
std::vector<std::string> varying_parameters(const report::Report& report,
                                            const std::vector<std::string>& shown,
                                            const std::vector<std::vector<std::size_t>>& cases_of_cells) {
  std::vector<std::string> varying;
  for (const Column& column : report.results) {
    if (!is_case_parameter(column) || std::ranges::count(shown, column.info.name) > 0) continue;
    const bool differs = std::ranges::any_of(cases_of_cells, [&](const std::vector<std::size_t>& rows) {
      return std::ranges::any_of(
          rows, [&](std::size_t row) { return text_at(column, row) != text_at(column, rows.front()); });
    });
    if (differs) varying.push_back(column.info.name);
  }
  return varying;
}

CaseCell cell_of(const Column* value, const std::optional<Statistic>& statistic,
                 const std::vector<std::size_t>& rows) {
  CaseCell cell;
  cell.cases = static_cast<int64_t>(rows.size());
  std::vector<double> values;
  for (const std::size_t row : rows) {
    if (value != nullptr && !std::isnan(value->numbers[row])) values.push_back(value->numbers[row]);
  }
  if (value != nullptr) cell.without_value = cell.cases - static_cast<int64_t>(values.size());
  if (!statistic) {
    cell.value = static_cast<double>(cell.cases - cell.without_value);
  } else if (!values.empty()) {
    cell.value = statistic_of(*statistic, values);
  }
  return cell;
}

}  // namespace

void add_where(Filter& where, const report::Report& report, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0)
    throw InvalidArgument(fmt::format("--where takes name=value, not '{}'", assignment));
  const std::string name = assignment.substr(0, equals);
  const Column& column = find_column(report, name, "column of one value a case", is_single);
  if (where.contains(name))
    throw InvalidArgument(fmt::format("--where gives {} twice; give all its values at once", name));
  const ParameterInfo info{
      name, column.info.is_text ? ParameterType::text : ParameterType::number, 0.0, "", "", {}};
  const std::string text = assignment.substr(equals + 1);
  if (!column.info.is_text && (text == "true" || text == "false")) {
    where[name] = {text == "true"};
  } else {
    where[name] = parsed_values(info, text);
  }
}

void keep_cases(report::Report& report, const Filter& where) {
  std::vector<std::size_t> kept;
  for (std::size_t row = 0; row < static_cast<std::size_t>(report.cases()); ++row)
    if (fits(report, where, row)) kept.push_back(row);
  if (kept.empty()) refuse_nothing(report, where);
  for (Column& column : report.results) {
    Column shorter{.info = column.info, .width = column.width};
    for (const std::size_t row : kept) {
      if (column.info.is_text) {
        shorter.texts.push_back(std::move(column.texts[row]));
      } else {
        const auto begin = column.numbers.begin() + static_cast<std::ptrdiff_t>(row) * column.width;
        shorter.numbers.insert(shorter.numbers.end(), begin, begin + column.width);
      }
    }
    column = std::move(shorter);
  }
}

CaseTable table_of_cases(const report::Report& report, const CaseTableRequest& request) {
  Keys rows(report, request.rows), columns(report, request.columns);
  std::vector<std::string> shown;
  for (const auto* names : {&request.rows, &request.columns}) {
    for (const std::string& name : *names) {
      if (std::ranges::count(shown, name) > 0)
        throw InvalidArgument(
            fmt::format("'{}' is given twice; rows and columns are different parameters", name));
      shown.push_back(name);
    }
  }
  CaseTable table;
  const Column* value = nullptr;
  if (!request.value.empty() || request.statistic) {
    value = &find_column(report, request.value, "column of one number a case", is_value);
    table.value = value->info;
  }
  if (!request.statistic || request.statistic == Statistic::fraction_true) table.value.units = "1";

  std::vector<std::size_t> selected;
  for (std::size_t row = 0; row < static_cast<std::size_t>(report.cases()); ++row) {
    if (!fits(report, request.where, row)) continue;
    selected.push_back(row);
    rows.add(row);
    columns.add(row);
  }
  if (selected.empty()) refuse_nothing(report, request.where);
  table.row_parameters = rows.infos;
  table.column_parameters = columns.infos;
  table.row_keys = rows.finish();
  table.column_keys = columns.finish();
  const std::size_t width = table.column_keys.size();
  std::vector<std::vector<std::size_t>> cases_of_cells(table.row_keys.size() * width);
  for (const std::size_t row : selected)
    cases_of_cells[rows.place_of(row) * width + columns.place_of(row)].push_back(row);
  for (std::size_t i = 0; i < cases_of_cells.size(); ++i) {
    if (i % width == 0) table.cells.emplace_back();
    table.cells.back().push_back(cell_of(value, request.statistic, cases_of_cells[i]));
  }
  table.varying = varying_parameters(report, shown, cases_of_cells);
  return table;
}

}  // namespace splash::experiments
