// Turns the results of cases into columns.

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/runner/plan.h"
#include "experiments/runner/recorded.h"

namespace splash::experiments {
namespace {

using report::Column;
using report::ColumnInfo;
using report::kMissing;

class Table {
 public:
  explicit Table(std::size_t cases) : cases_(cases) {}

  Column& declare(const ColumnInfo& info) {
    const auto found =
        std::find_if(columns_.begin(), columns_.end(), [&](auto& c) { return c.info.name == info.name; });
    if (found != columns_.end()) {
      merge(found->info, info);
      return *found;
    }
    Column column;
    column.info = info;
    if (info.is_text) {
      column.texts.resize(cases_);
    } else if (info.dimension.empty()) {
      column.numbers.assign(cases_, kMissing);
    }
    columns_.push_back(std::move(column));
    return columns_.back();
  }

  Column& at(const std::string& name) {
    return *std::find_if(columns_.begin(), columns_.end(), [&](auto& c) { return c.info.name == name; });
  }

  void set(const ColumnInfo& info, std::size_t row, const Value& value) {
    Column& column = at(info.name);
    if (info.is_text) {
      column.texts[row] = std::get<std::string>(value);
    } else {
      column.numbers[row] = number_of(value);
    }
  }

  std::vector<Column> take() { return std::move(columns_); }

 private:
  static void merge(ColumnInfo& known, const ColumnInfo& other) {
    auto require = [&](bool same, const char* what, const std::string& a, const std::string& b) {
      if (same) return;
      throw InvalidArgument(
          fmt::format("two kinds of this run declare the column '{}' with different {}: '{}' and '{}'",
                      known.name, what, a, b));
    };
    require(known.units == other.units || known.is_text, "units", known.units, other.units);
    require(known.is_text == other.is_text, "types", known.is_text ? "text" : "number",
            other.is_text ? "text" : "number");
    require(known.dimension == other.dimension, "dimensions", known.dimension, other.dimension);
    known.is_parameter = known.is_parameter || other.is_parameter;
    known.reproducible = known.reproducible && other.reproducible;
    if (!other.missing_reason.empty() &&
        known.missing_reason.find(other.missing_reason) == std::string::npos) {
      known.missing_reason += (known.missing_reason.empty() ? "" : "; ") + other.missing_reason;
    }
  }

  std::size_t cases_;
  std::vector<Column> columns_;
};

void require_declared(const Kind& kind, const std::set<std::string>& declared, const CaseResult& result) {
  auto require = [&](const auto& found) {
    for (const auto& [name, value] : found) {
      if (declared.count(name) == 0) {
        throw Error(
            fmt::format("kind '{}' reports '{}', a column that it does not declare", kind.name(), name));
      }
    }
  };
  require(result.numbers);
  require(result.texts);
  require(result.vectors);
}

// Pads every case's vector to the longest one.
void fill_vectors(Column& column, const std::vector<CaseResult>& results) {
  const std::string& name = column.info.name;
  std::size_t width = 1;
  for (const CaseResult& result : results) {
    if (const auto found = result.vectors.find(name); found != result.vectors.end())
      width = std::max(width, found->second.size());
  }
  column.width = static_cast<int64_t>(width);
  column.numbers.assign(results.size() * width, kMissing);
  for (std::size_t row = 0; row < results.size(); ++row) {
    const auto found = results[row].vectors.find(name);
    if (found == results[row].vectors.end()) continue;
    std::copy(found->second.begin(), found->second.end(),
              column.numbers.begin() + static_cast<std::ptrdiff_t>(row * width));
  }
}

bool is_missing(const Column& column) {
  return column.info.is_text ? std::count(column.texts.begin(), column.texts.end(), "") > 0
                             : std::any_of(column.numbers.begin(), column.numbers.end(),
                                           [](double x) { return std::isnan(x); });
}

void give_reason(Column& column, bool shared_by_all, bool unused) {
  std::string& reason = column.info.missing_reason;
  if (unused) reason = kWithoutEffect;
  if (!shared_by_all) {
    if (!reason.empty()) reason += "; or ";
    reason += column.info.is_parameter ? "not a parameter of this case's experiment"
                                       : "not measured by this case's experiment";
  } else if (reason.empty() && is_missing(column)) {
    reason = column.info.dimension.empty() ? "not found in this case"
                                           : "this case has fewer entries than the longest";
  }
}

}  // namespace

std::vector<report::Dimension> dimensions_of(const std::vector<Definition>& definitions) {
  std::vector<report::Dimension> all;
  for (const Definition& definition : definitions) {
    for (report::Dimension& dimension : find_kind(definition.kind).dimensions()) {
      const auto known =
          std::find_if(all.begin(), all.end(), [&](auto& other) { return other.name == dimension.name; });
      if (known == all.end()) {
        all.push_back(std::move(dimension));
      } else if (known->values != dimension.values) {
        throw InvalidArgument(fmt::format(
            "two kinds of this run declare the dimension '{}' with different values", dimension.name));
      }
    }
  }
  return all;
}

std::vector<Column> make_table(const std::vector<Definition>& definitions,
                               const std::vector<PlannedCase>& cases,
                               const std::vector<CaseResult>& results) {
  Table table(cases.size());
  const ColumnInfo experiment{.name = "experiment",
                              .units = "1",
                              .long_name = "name of the experiment that the case belongs to",
                              .formula = "the definition's file name",
                              .is_text = true};
  const ColumnInfo id{.name = "case_id",
                      .units = "1",
                      .long_name = "fingerprint of the case",
                      .formula = "hash of kind, parameters, program and inputs",
                      .is_text = true,
                      .reproducible = false};  // it differs from build to build
  const ColumnInfo index{.name = "case_index",
                         .units = "1",
                         .long_name = "place of the case among all cases of its experiment, from 0",
                         .formula = "counted"};
  for (const ColumnInfo* info : {&experiment, &id, &index}) table.declare(*info);

  std::map<std::string, std::size_t> declared_by;  // column -> experiments that have it
  std::vector<std::vector<ColumnInfo>> parameter_infos, column_infos;
  for (const Definition& definition : definitions) {
    const Kind& kind = find_kind(definition.kind);
    parameter_infos.emplace_back();
    for (const ParameterInfo& parameter : kind.parameters())
      parameter_infos.back().push_back(column_info(parameter));
    column_infos.push_back(kind.columns());
  }
  for (const auto* infos : {&parameter_infos, &column_infos}) {
    for (const auto& of_experiment : *infos) {
      for (const ColumnInfo& info : of_experiment) {
        table.declare(info);
        ++declared_by[info.name];
      }
    }
  }

  std::set<std::string> unused;  // parameters that have no effect in some case of their experiment
  for (std::size_t row = 0; row < cases.size(); ++row) {
    const PlannedCase& planned = cases[row];
    const Kind& kind = find_kind(definitions[planned.experiment].kind);
    table.set(experiment, row, definitions[planned.experiment].name);
    table.set(id, row, planned.case_id);
    table.set(index, row, planned.index);
    const Parameters used = kind.used(planned.parameters);
    for (const ColumnInfo& info : parameter_infos[planned.experiment]) {
      if (const auto value = used.find(info.name); value != used.end()) {
        table.set(info, row, value->second);
      } else {
        unused.insert(info.name);
      }
    }
    std::set<std::string> declared;
    for (const ColumnInfo& info : column_infos[planned.experiment]) {
      declared.insert(info.name);
      const auto number = results[row].numbers.find(info.name);
      const auto text = results[row].texts.find(info.name);
      if (number != results[row].numbers.end() && !info.is_text) table.set(info, row, number->second);
      if (text != results[row].texts.end() && info.is_text) table.set(info, row, text->second);
    }
    require_declared(kind, declared, results[row]);
  }

  std::vector<Column> columns = table.take();
  for (Column& column : columns) {
    if (!column.info.dimension.empty()) fill_vectors(column, results);
    const auto shared = declared_by.find(column.info.name);
    give_reason(column, shared == declared_by.end() || shared->second == definitions.size(),
                unused.contains(column.info.name));
  }
  return columns;
}

}  // namespace splash::experiments
