// splash paper: a published table beside what recorded reports hold of the same.

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/suggest.h"
#include "experiments/claims/paper_table.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/places.h"
#include "experiments/cli/table_formats.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/project_root.h"
#include "experiments/runner/value.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using namespace experiments;

// The command that measures what is missing in a row.
std::string measuring(const PaperTable& table, std::size_t row, const Words& implementations) {
  const Definition definition = find_definitions(table.experiment, all_definition_files()).front();
  std::string command = "./splash run " + table.experiment;
  for (const std::string& setting : settings_of_row(table, row, definition)) command += " --set " + setting;
  std::vector<Value> values(implementations.begin(), implementations.end());
  return command + fmt::format(" --set {}", quoted({table.by + "=" + values_text(values)}));
}

Words notes_of(const PaperTable& table, const std::vector<PaperLine>& lines,
               const std::vector<report::Report>& reports, const Words& files) {
  Words notes{fmt::format("theirs: {}; {}", table.place, table.gpu.empty() ? "GPU not stated" : table.gpu)};
  if (!table.not_stated.empty())
    notes.push_back(fmt::format("not stated there: {}", list_words(table.not_stated)));
  for (std::size_t i = 0; i < reports.size(); ++i)
    notes.push_back(fmt::format("ours: {}, {}", files[i], reports[i].provenance.gpu));
  for (std::size_t i = 0; i < lines.size();) {
    Words missing;
    const std::size_t row = lines[i].row;
    for (; i < lines.size() && lines[i].row == row; ++i)
      if (std::isnan(lines[i].ours) && !lines[i].ours_name.empty()) missing.push_back(lines[i].ours_name);
    std::ranges::sort(missing);
    missing.erase(std::ranges::unique(missing).begin(), missing.end());
    if (!missing.empty()) notes.push_back("not measured: " + measuring(table, row, missing));
  }
  return notes;
}

FormattedTable as_texts(const PaperTable& table, const std::vector<PaperLine>& lines, Words notes, int digits,
                        bool exact) {
  FormattedTable result{table.paper + ": " + table.title, {}, table.rows.size() + 3, {}, std::move(notes)};
  for (const Axis& axis : table.rows) result.header.push_back(axis.name);
  for (const char* head : {"theirs", "ours", "unit", "theirs", "ours", "ours / theirs"})
    result.header.emplace_back(head);
  const auto number = [&](double value) {
    const bool is_large = std::abs(value) >= std::pow(10, digits);  // printed whole, not as a power of ten
    return exact      ? fmt::format("{}", value)
           : is_large ? fmt::format("{:.0f}", value)
                      : fmt::format("{:.{}g}", value, digits);
  };
  for (const PaperLine& line : lines) {
    Words row;
    for (const Axis& axis : table.rows) row.push_back(to_text(axis.values[line.row]));
    row.insert(row.end(), {line.theirs_name, line.ours_name.empty() ? "–" : line.ours_name, line.unit,
                           number(line.theirs)});
    if (!std::isnan(line.ours)) {
      row.insert(row.end(),
                 {number(line.ours), line.differs.empty() ? number(line.ours / line.theirs) : line.differs});
    } else {
      row.insert(row.end(), {line.ours_name.empty() ? "–" : "not measured", line.why});
    }
    result.rows.push_back(std::move(row));
  }
  return result;
}

void print_list(const std::vector<PaperTable>& tables) {
  TextTable list({"table", "paper", "what it holds"});
  for (const PaperTable& table : tables) list.add({{table.name}, {table.paper}, {table.title}});
  list.print();
}

}  // namespace

int cmd_paper(const Words& words) {
  CLI::App app;
  prepare(app, "paper",
          "splash paper                                       the tables that there are\n"
          "splash paper kascade-prefill --format latex\n"
          "splash paper adasplash2-lengths my.h5 --digits 2\n"
          "splash paper all --format markdown",
          "A paper's table (data/papers) beside what reports hold of the same: theirs, ours, and their ratio "
          "where both "
          "measured the same\n"
          "problem; else what differs. What was not measured is told with the command that measures it.");
  std::string name, format = "text";
  Words files;
  int digits = 3;
  app.add_option("NAME", name, "a table, or all; without it the tables are listed");
  app.add_option("REPORT", files,
                 "reports to look in, instead of those in data/reports that the table names");
  app.add_option("--format", format, fmt::format("{} (text)", fmt::join(table_formats(), ", ")))
      ->type_name("NAME");
  app.add_option("--digits", digits, "significant digits of a number (3); csv has them all")->type_name("N");
  parse(app, words);
  if (digits < 1 || digits > 17)
    throw InvalidArgument(fmt::format("--digits is {}; it must be from 1 to 17", digits));
  require_table_format(format);

  const std::vector<PaperTable> tables = read_paper_tables(project_root() + "/data/papers");
  if (name.empty()) {
    print_list(tables);
    return kDone;
  }
  Words names{"all"};
  for (const PaperTable& table : tables) names.push_back(table.name);
  if (std::ranges::count(names, name) == 0)
    throw InvalidArgument(fmt::format("there is no table '{}'{}", name, suggestion(name, names)));
  bool is_first = true;
  for (const PaperTable& table : tables) {
    if (name != "all" && name != table.name) continue;
    Words shown = files, paths = files;
    if (files.empty()) {
      for (const std::string& file : table.reports) {
        shown.push_back("data/reports/" + file);
        paths.push_back(project_root() + "/data/reports/" + file);
      }
    }
    std::vector<report::Report> reports;
    for (const std::string& path : paths) reports.push_back(report::read_report(path));
    const std::vector<PaperLine> lines = compare_with_paper(table, reports);
    const FormattedTable texts =
        as_texts(table, lines, notes_of(table, lines, reports, shown), digits, format == "csv");
    print((is_first ? "" : "\n") + formatted(texts, format));
    if (format == "csv")
      for (const std::string& note : texts.notes) narrate("{}", note);
    is_first = false;
  }
  return kDone;
}

}  // namespace splash::cli
