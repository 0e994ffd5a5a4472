// splash show: shows what a report holds.

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/samples.h"
#include "analysis/statistics.h"
#include "core/text.h"
#include "experiments/cli/ceilings_view.h"
#include "experiments/cli/claims_view.h"
#include "experiments/cli/command.h"
#include "experiments/runner/case_json.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using namespace analysis;
using experiments::plain_number;
using nlohmann::json;

json provenance_json(const report::Report& report) {
  const report::Provenance& p = report.provenance;
  return {{"commit", p.commit},
          {"dirty", p.dirty},
          {"argv", p.argv},
          {"experiment_toml", p.experiment_toml},
          {"seed", p.seed},
          {"threads", p.threads},
          {"host", p.host},
          {"cpu", p.cpu},
          {"gpu", p.gpu},
          {"driver", p.driver},
          {"clocks", p.clocks},
          {"toolchain", p.toolchain},
          {"started", p.started},
          {"finished", p.finished},
          {"input_hashes", p.input_hashes}};
}

json value_at(const report::Column& column, int64_t row) {
  if (column.info.is_text) return column.texts[static_cast<std::size_t>(row)];
  if (column.info.dimension.empty()) return plain_number(column.numbers[static_cast<std::size_t>(row)]);
  json list = json::array();
  for (int64_t i = 0; i < column.width; ++i)
    list.push_back(plain_number(column.numbers[static_cast<std::size_t>(row * column.width + i)]));
  return list;
}

json columns_json(const report::Report& report) {
  json columns = json::array();
  for (const report::Column& column : report.results) {
    const report::ColumnInfo& info = column.info;
    columns.push_back({{"name", info.name},
                       {"units", info.units},
                       {"long_name", info.long_name},
                       {"formula", info.formula},
                       {"is_parameter", info.is_parameter},
                       {"reproducible", info.reproducible},
                       {"missing_reason", info.missing_reason},
                       {"dimension", info.dimension}});
  }
  return columns;
}

json cases_json(const report::Report& report) {
  json cases = json::array();
  for (int64_t row = 0; row < report.cases(); ++row) {
    json entry = json::object();
    for (const report::Column& column : report.results) entry[column.info.name] = value_at(column, row);
    cases.push_back(std::move(entry));
  }
  return cases;
}

// Prints tab-separated results for cut, awk and spreadsheets. Missing entries are empty, and vectors are
// separated by commas. No text can split its cell or be read as a formula.
void print_results(const report::Report& report) {
  std::string line;
  for (const report::Column& column : report.results)
    line += (line.empty() ? "" : "\t") + table_cell(column.info.name);
  print(line + "\n");
  for (int64_t row = 0; row < report.cases(); ++row) {
    line.clear();
    const char* separator = "";
    for (const report::Column& column : report.results) {
      line += separator;
      separator = "\t";
      if (column.info.is_text) {
        line += table_cell(column.texts[static_cast<std::size_t>(row)]);
        continue;
      }
      for (int64_t i = 0; i < column.width; ++i) {
        const double value = column.numbers[static_cast<std::size_t>(row * column.width + i)];
        if (i > 0) line += ',';
        if (!std::isnan(value)) line += fmt::format("{}", value);
      }
    }
    print(line + "\n");
  }
}

void print_provenance(const report::Report& report) {
  const report::Provenance& p = report.provenance;
  print(fmt::format(
      "commit     {}{}\ncommand    {}\nstarted    {}\nfinished   {}\nseed       {}\nthreads    {}\nhost      "
      " {}\n"
      "cpu        {}\ngpu        {}\ndriver     {}\nclocks     {}\ntoolchain  "
      "{}\n\ninputs\n{}\n\nexperiment\n{}\n",
      one_line(p.commit), p.dirty ? " (with changes)" : "", one_line(p.argv), one_line(p.started),
      one_line(p.finished), p.seed, p.threads, one_line(p.host), one_line(p.cpu), one_line(p.gpu),
      one_line(p.driver), one_line(p.clocks), one_line(p.toolchain), p.input_hashes, p.experiment_toml));
}

bool is_missing(const report::Column& column, int64_t row) {
  if (column.info.is_text) return column.texts[static_cast<std::size_t>(row)].empty();
  const auto begin = column.numbers.begin() + row * column.width;
  return std::all_of(begin, begin + column.width, [](double value) { return std::isnan(value); });
}

// Prints one line per column: how many cases have it, and its range.
void print_columns(const report::Report& report) {
  TextTable table({"column", "units", "cases", "min", "median", "max", "what it is"});
  for (const report::Column& column : report.results) {
    std::vector<double> values;
    std::copy_if(column.numbers.begin(), column.numbers.end(), std::back_inserter(values),
                 [](double value) { return !std::isnan(value); });
    int64_t filled = 0;
    for (int64_t row = 0; row < report.cases(); ++row) filled += !is_missing(column, row);
    auto at = [&](double q) {
      return column.info.is_text ? std::string("text") : short_number(quantile(values, q));
    };
    table.add({{column.info.name, column.info.is_parameter ? Colour::dim : Colour::none},
               {column.info.units},
               {fmt::format("{}", filled)},
               {at(0)},
               {at(0.5)},
               {at(1)},
               {column.info.long_name}});
  }
  table.print();
}

// Prints the timings that cannot be trusted. Each sentence says what to do next.
void print_spoilt(const report::Report& report) {
  constexpr std::size_t kShown = 5;
  const std::vector<SpoiltCase> cases = spoilt_cases(report);
  if (cases.empty()) return;
  const report::Column* const who = report.find("implementation");
  print(fmt::format("\n{} of {} cases were timed under a changing clock or load:\n", cases.size(),
                    report.cases()));
  for (std::size_t i = 0; i < std::min(kShown, cases.size()); ++i) {
    const auto row = static_cast<std::size_t>(cases[i].row);
    const std::string name =
        who != nullptr && who->info.is_text ? who->texts[row] : fmt::format("case {}", row);
    print(fmt::format("  {}: {}\n", one_line(name), one_line(cases[i].sentence)));
  }
  if (cases.size() > kShown) print(fmt::format("  and {} more\n", cases.size() - kShown));
}

void print_summary(const report::Report& report) {
  print(
      fmt::format("{}\nstatus     {}\nrun        {}\ncommit     {}{}\nfinished   {}\ncpu        {}\ngpu      "
                  "  {}\ncases      {}\n\n",
                  one_line(report.title), one_line(report.status), one_line(report.run_id),
                  one_line(report.provenance.commit), report.provenance.dirty ? " (with changes)" : "",
                  one_line(report.provenance.finished), one_line(report.provenance.cpu),
                  one_line(report.provenance.gpu), report.cases()));
  if (!report.results.empty()) print_columns(report);
  if (!report.ceilings.empty()) {
    print("\n");
    ceilings_table(report.ceilings).print();
  }
  if (!report.claims.empty()) {
    print(fmt::format("\n{}; splash show --claims tells them\n", count_verdicts(report.claims)));
  }
  print_spoilt(report);
  if (!report.attachments.empty()) print(fmt::format("{} attachments\n", report.attachments.size()));
}

}  // namespace

int cmd_show(const Words& words) {
  CLI::App app;
  prepare(app, "show",
          "splash show out/reproduce/report.h5\n"
          "splash show out/reproduce/report.h5 --claims\n"
          "splash show out/sweep.h5 --results | column -t -s $'\\t' | less -S",
          "What a report holds: its origin, a summary of every column, ceilings, claims.");
  std::string file;
  bool want_claims = false, want_results = false, want_provenance = false, as_json = false;
  app.add_option("REPORT", file, "an HDF5 report")->required();
  app.add_flag("--claims", want_claims, "the claims and their verdicts");
  app.add_flag("--results", want_results, "every case, tab-separated");
  app.add_flag("--provenance", want_provenance, "where it comes from, the experiment's definition included");
  app.add_flag("--json", as_json, "one object on stdout, of the parts asked for or of all");
  parse(app, words);
  const report::Report report = report::read_report(file);
  const bool all = !want_claims && !want_results && !want_provenance;
  if (as_json) {
    json object = {{"title", report.title},
                   {"run_id", report.run_id},
                   {"status", report.status},
                   {"history", report.history}};
    if (all) object["ceilings"] = ceilings_json(report.ceilings);
    if (all || want_claims) object["claims"] = claims_json(report.claims);
    if (all || want_results) {
      object["columns"] = columns_json(report);
      object["cases"] = cases_json(report);
    }
    if (all || want_provenance) object["provenance"] = provenance_json(report);
    print_json(object);
    return kDone;
  }
  if (all) print_summary(report);
  if (want_provenance) print_provenance(report);
  if (want_claims) claims_table(report.claims).print();
  if (want_results) print_results(report);
  return kDone;
}

}  // namespace splash::cli
