#include "experiments/claims/paper_table.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "experiments/claims/measure.h"
#include "experiments/runner/recorded.h"
#include "experiments/runner/value.h"

namespace splash::experiments {
namespace {

using report::Column;
using report::Report;

constexpr double kSameResult = 0.05;  // relative

bool is_missing(const Column& column, std::size_t row) {
  return column.info.is_text ? column.texts[row].empty() : std::isnan(column.numbers[row]);
}

std::string shown(const Column& column, std::size_t row) {
  return column.info.is_text ? column.texts[row] : fmt::format("{:.4g}", column.numbers[row]);
}

struct NearCase {
  const Report* report = nullptr;
  std::size_t row = 0;
  double value = 0;
  std::vector<std::string> other, unknown;  // names of what differs, and of what the report does not hold
};

// The cases that one row of the table chooses.
class RowCases {
 public:
  RowCases(const PaperTable& table, std::size_t row, const std::vector<Report>& reports)
      : table_(table), row_(row), reports_(reports) {}

  std::optional<NearCase> nearest(const std::string& implementation, const Report* only = nullptr) const {
    std::optional<NearCase> best;
    for (const Report& report : reports_) {
      if (only != nullptr && only != &report) continue;
      const Column* value = report.find(table_.column);
      if (value == nullptr || value->info.is_text || value->width != 1) continue;
      for (const std::size_t row : rows_of(report, implementation)) {
        if (is_missing(*value, row)) continue;
        NearCase found{&report, row, value->numbers[row] / table_.scale, {}, {}};
        add_differences(found);
        const auto distance = [](const NearCase& f) { return f.other.size() + f.unknown.size(); };
        if (!best || distance(found) < distance(*best)) best = std::move(found);
      }
    }
    return best;
  }

 private:
  // implementation "": of any.
  std::vector<std::size_t> rows_of(const Report& report, const std::string& implementation) const {
    Filter where{{"experiment", {table_.experiment}}};
    if (!implementation.empty()) where[table_.by] = {implementation};
    for (const Axis& axis : table_.rows)
      if (const Column* column = report.find(axis.name); column != nullptr && column->info.is_parameter)
        where[axis.name] = {axis.values[row_]};
    for (const Axis& axis : table_.ours) where[axis.name] = {axis.values[row_]};
    std::vector<std::size_t> rows;
    for (std::size_t row = 0; row < static_cast<std::size_t>(report.cases()); ++row)
      if (fits(report, where, row)) rows.push_back(row);
    return rows;
  }

  void add_differences(NearCase& found) const {
    const Report& report = *found.report;
    const std::string& gpu = report.provenance.gpu;
    if (is_time(report) && !table_.gpu.empty() && gpu.find(table_.gpu) == std::string::npos)
      found.other.push_back(fmt::format("GPU ({})", gpu));
    for (const auto& [name, value] : table_.stated) {
      const Column* column = report.find(name);  // missing: without effect on the case
      if (column == nullptr || is_missing(*column, found.row) || fits(report, {{name, {value}}}, found.row))
        continue;
      found.other.push_back(fmt::format("{} ({})", name, shown(*column, found.row)));
    }
    for (const Axis& axis : table_.rows) add_result(found, axis);
  }

  // Compares what no parameter sets, such as the share of empty tiles: some implementation's case of the row
  // tells it.
  void add_result(NearCase& found, const Axis& axis) const {
    const Column* column = found.report->find(axis.name);
    if (column != nullptr && column->info.is_parameter) return;
    const double theirs = number_of(axis.values[row_]);
    for (const std::size_t row :
         column == nullptr ? std::vector<std::size_t>{} : rows_of(*found.report, "")) {
      if (is_missing(*column, row)) continue;
      if (std::abs(column->numbers[row] - theirs) > kSameResult * std::abs(theirs))
        found.other.push_back(fmt::format("{} ({})", axis.name, shown(*column, row)));
      return;
    }
    found.unknown.push_back(axis.name);
  }

  bool is_time(const Report& report) const { return report.find(table_.column)->info.units == "s"; }

  const PaperTable& table_;
  std::size_t row_;
  const std::vector<Report>& reports_;
};

std::string in_words(const PaperTable& table, const std::vector<std::string>& typed, const NearCase& found,
                     bool is_quotient) {
  std::vector<std::string> parts, other = found.other;
  for (const std::string& text : typed)
    if (!text.empty()) parts.push_back(text);
  if (is_quotient) std::erase_if(other, [](const std::string& name) { return name.starts_with("GPU"); });
  const bool is_time = found.report->find(table.column)->info.units == "s";
  if (!other.empty()) parts.push_back(fmt::format("other {}", fmt::join(other, ", ")));
  if (!found.unknown.empty())
    parts.push_back(fmt::format("not known here: {}", fmt::join(found.unknown, ", ")));
  if (!table.not_stated.empty()) {
    parts.emplace_back("problem not fully stated");
  } else if (is_time && !is_quotient && table.gpu.empty()) {
    parts.emplace_back("GPU not stated");
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

std::vector<PaperLine> compare_with_paper(const PaperTable& table, const std::vector<Report>& reports) {
  const auto over = std::ranges::find(table.series, table.over, &PaperSeries::name);
  std::vector<PaperLine> lines;
  for (std::size_t row = 0; row < table.rows.front().values.size(); ++row) {
    const RowCases cases(table, row, reports);
    for (const PaperSeries& series : table.series) {
      PaperLine line{row, series.name, "", table.unit, series.values[row], report::kMissing, series.why, ""};
      if (std::isnan(line.theirs)) continue;
      if (series.ours.empty()) lines.push_back(line);
      for (const std::string& implementation : series.ours) {
        line.ours_name = implementation;
        const auto found = cases.nearest(implementation);
        line.ours = found ? found->value : report::kMissing;
        line.differs = found ? in_words(table, {series.differs}, *found, false) : "";
        lines.push_back(line);
        if (!found || over == table.series.end() || &*over == &series || std::isnan(over->values[row]))
          continue;
        const auto base = cases.nearest(over->ours.front(), found->report);
        if (!base) continue;
        lines.push_back({row, over->name + " / " + series.name, over->ours.front() + " / " + implementation,
                         "x", over->values[row] / line.theirs, base->value / found->value, "",
                         in_words(table, {series.differs, over->differs}, *found, true)});
      }
    }
  }
  return lines;
}

std::vector<std::string> settings_of_row(const PaperTable& table, std::size_t row,
                                         const Definition& definition) {
  Parameters wanted = table.stated;
  for (const auto* lists : {&table.rows, &table.ours})
    for (const Axis& list : *lists) wanted[list.name] = list.values[row];
  std::vector<std::string> settings;
  for (const ParameterInfo& info : find_kind(definition.kind).parameters()) {
    const auto want = wanted.find(info.name);
    if (want == wanted.end()) continue;
    const Value value = checked(info, want->second);
    const auto fixed = definition.full.fixed.find(info.name);
    if (fixed == definition.full.fixed.end() || fixed->second != value)
      settings.push_back(info.name + "=" + values_text({value}));
  }
  return settings;
}

}  // namespace splash::experiments
