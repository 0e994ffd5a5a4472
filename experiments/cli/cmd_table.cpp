// splash table: a statistic of one result over a report's cases, by their parameters.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/suggest.h"
#include "experiments/claims/case_table.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/table_formats.h"
#include "experiments/runner/case_json.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/record.h"
#include "experiments/runner/value.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using namespace experiments;

constexpr const char* kNoCase = "–";
constexpr const char* kNoValue = "missing";
constexpr const char* kCount = "count";

Words split(const std::string& names) {
  Words words;
  for (std::size_t begin = 0; begin <= names.size() && !names.empty();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    words.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::optional<Statistic> statistic_from(const std::string& name) {
  const Words& names = statistic_names();
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return static_cast<Statistic>(found - names.begin());
  if (name == kCount) return std::nullopt;
  Words allowed = names;
  allowed.emplace_back(kCount);
  throw InvalidArgument(fmt::format("unknown statistic '{}'{}", name, suggestion(name, allowed)));
}

std::string with_units(const std::string& name, const report::ColumnInfo& info) {
  return info.units.empty() || info.units == "1" ? name : fmt::format("{} [{}]", name, info.units);
}

// Turns the cells into a unit that is the column's own behind a prefix: ms of s, GFLOP/s of FLOP/s.
void scale(CaseTable& table, const std::string& unit) {
  static const std::pair<const char*, double> kPrefixes[] = {
      {"n", 1e-9}, {"u", 1e-6}, {"m", 1e-3}, {"", 1}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}};
  Words allowed;
  for (const auto& [prefix, factor] : kPrefixes) {
    allowed.push_back(prefix + table.value.units);
    if (unit != allowed.back()) continue;
    table.value.units = unit;
    for (auto& row : table.cells)
      for (CaseCell& cell : row) cell.value /= factor;
    return;
  }
  throw InvalidArgument(fmt::format("--unit cannot be '{}'; allowed: {}", unit, list_words(allowed)));
}

std::string described(const Filter& where) {
  std::string text;
  for (const auto& [name, values] : where) {
    text += (text.empty() ? " of the cases with " : ", ") + name;
    for (std::size_t i = 0; i < values.size(); ++i) text += (i == 0 ? " " : " or ") + to_text(values[i]);
  }
  return text;
}

Words notes_of(const CaseTable& table) {
  int64_t fewest = 0, most = 0;
  bool empty = false, missing = false;
  for (const auto& row : table.cells) {
    for (const CaseCell& cell : row) {
      empty = empty || cell.cases == 0;
      missing = missing || (cell.cases > 0 && std::isnan(cell.value));
      if (cell.cases == 0) continue;
      fewest = fewest == 0 ? cell.cases : std::min(fewest, cell.cases);
      most = std::max(most, cell.cases);
    }
  }
  Words notes;
  if (most > 1) {
    std::string note = fewest == most ? fmt::format("{} cases in each cell", most)
                                      : fmt::format("{} to {} cases in a cell", fewest, most);
    constexpr std::size_t kShown = 6;
    Words varying = table.varying;
    if (varying.size() > kShown + 1) {
      varying.resize(kShown);
      varying.push_back(fmt::format("{} more", table.varying.size() - kShown));
    }
    if (!varying.empty()) note += ", which differ in " + list_words(varying);
    notes.push_back(note + (empty ? fmt::format("; {}: no case", kNoCase) : ""));
  } else if (empty) {
    notes.push_back(fmt::format("{}: no case", kNoCase));
  }
  if (missing) {
    const std::string& why = table.value.missing_reason;
    notes.push_back(
        fmt::format("{}: no case of the cell has a value{}", kNoValue, why.empty() ? "" : ": " + why));
  }
  return notes;
}

FormattedTable as_texts(const CaseTable& table, const std::string& caption, int digits, bool exact) {
  FormattedTable result{caption, {}, table.row_parameters.size(), {}, notes_of(table)};
  for (const report::ColumnInfo& info : table.row_parameters)
    result.header.push_back(with_units(info.name, info));
  for (const auto& key : table.column_keys) {
    std::string head;
    for (std::size_t i = 0; i < key.size(); ++i) {
      const std::string& units = table.column_parameters[i].units;
      head += fmt::format("{}{} {}{}", i > 0 ? ", " : "", table.column_parameters[i].name, key[i],
                          units.empty() || units == "1" ? "" : " " + units);
    }
    result.header.push_back(head.empty() ? with_units(table.value.name, table.value) : head);
  }
  for (std::size_t r = 0; r < table.cells.size(); ++r) {
    Words row = table.row_keys[r];
    for (const CaseCell& cell : table.cells[r]) {
      row.push_back(cell.cases == 0          ? kNoCase
                    : std::isnan(cell.value) ? kNoValue
                    : exact                  ? fmt::format("{}", cell.value)
                                             : fmt::format("{:.{}g}", cell.value, digits));
    }
    result.rows.push_back(std::move(row));
  }
  return result;
}

nlohmann::json to_json(const CaseTable& table, const std::string& value, const std::string& statistic) {
  nlohmann::json cells = nlohmann::json::array();
  for (std::size_t r = 0; r < table.cells.size(); ++r) {
    for (std::size_t c = 0; c < table.column_keys.size(); ++c) {
      const CaseCell& cell = table.cells[r][c];
      nlohmann::json entry = {
          {"value", plain_number(cell.value)}, {"cases", cell.cases}, {"without_value", cell.without_value}};
      for (std::size_t i = 0; i < table.row_parameters.size(); ++i)
        entry["row"][table.row_parameters[i].name] = table.row_keys[r][i];
      for (std::size_t i = 0; i < table.column_parameters.size(); ++i)
        entry["column"][table.column_parameters[i].name] = table.column_keys[c][i];
      cells.push_back(std::move(entry));
    }
  }
  return {{"value", value},
          {"units", table.value.units},
          {"statistic", statistic},
          {"varying", table.varying},
          {"cells", cells}};
}

}  // namespace

int cmd_table(const Words& words) {
  CLI::App app;
  prepare(app, "table",
          "splash table data/reports/reproduce-quick.h5 --rows k_keep --columns alpha --value nmse_vs_entmax "
          "--where scope=row\n"
          "splash table report.h5 --rows implementation --columns q_len --value time_median --unit ms "
          "--format latex\n"
          "splash table report.h5 --rows experiment --statistic count",
          "A table of a report: rows and columns are parameters of its cases, a cell is a statistic of one "
          "column over\n"
          "the cases that remain. A note says how many cases a cell holds and what they differ in.");
  std::string file, rows, columns, unit, statistic = "median", format = "text";
  CaseTableRequest request;
  Words where;
  int digits = 4;
  bool json = false;
  app.add_option("REPORT", file, "an HDF5 report")->required();
  app.add_option("--rows", rows, "a parameter, or several with commas between them")
      ->required()
      ->type_name("NAME");
  app.add_option("--columns", columns, "the same for the columns; without it there is one")
      ->type_name("NAME");
  app.add_option("--value", request.value, "a column of numbers; `splash show REPORT` lists them")
      ->type_name("NAME");
  app.add_option("--statistic", statistic,
                 fmt::format("{} or count (median)", fmt::join(statistic_names(), ", ")))
      ->type_name("NAME");
  app.add_option("--where", where,
                 "only these cases, by any column; values as for `splash run --set`. May be repeated")
      ->type_name("NAME=V,V")
      ->expected(1)
      ->take_all();
  app.add_option("--unit", unit, "the column's own behind a prefix: ms, us, GFLOP/s")->type_name("UNIT");
  app.add_option("--format", format, fmt::format("{} (text)", fmt::join(table_formats(), ", ")))
      ->type_name("NAME");
  app.add_option("--digits", digits, "significant digits of a cell (4); csv has them all")->type_name("N");
  app.add_flag("--json", json, "one object on stdout");
  parse(app, words);
  if (digits < 1 || digits > 17)
    throw InvalidArgument(fmt::format("--digits is {}; it must be from 1 to 17", digits));
  request.statistic = statistic_from(statistic);
  if (request.value.empty() && request.statistic)
    throw InvalidArgument("--value is needed, a column of numbers; `splash show REPORT` lists them");
  require_table_format(format);
  request.rows = split(rows);
  request.columns = split(columns);

  report::Report report = report::read_report(file);
  add_kinds(report);
  for (const std::string& assignment : where) add_where(request.where, report, assignment);
  CaseTable table = table_of_cases(report, request);
  if (!unit.empty()) scale(table, unit);
  const std::string caption =
      (request.value.empty() ? "number of cases"
                             : with_units(statistic + " of " + request.value, table.value)) +
      described(request.where);
  if (json) {
    print_json(to_json(table, request.value, statistic));
    return kDone;
  }
  const FormattedTable texts = as_texts(table, caption, digits, format == "csv");
  print(formatted(texts, format));
  if (format == "csv") {
    narrate("{}", texts.caption);
    for (const std::string& note : texts.notes) narrate("{}", note);
  }
  return kDone;
}

}  // namespace splash::cli
