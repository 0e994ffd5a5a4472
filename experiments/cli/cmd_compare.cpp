// splash compare: compares two reports of the same experiment.

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/compare.h"
#include "core/text.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/runner/case_json.h"
#include "experiments/runner/record.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using namespace analysis;
using experiments::plain_number;

Colour colour_of(Difference found) {
  switch (found) {
    case Difference::different:
    case Difference::slower:
      return Colour::red;
    case Difference::faster:
      return Colour::green;
    case Difference::unsure:
      return Colour::yellow;
    case Difference::same:
      break;
  }
  return Colour::dim;
}

nlohmann::json to_json(const Comparison& comparison) {
  nlohmann::json columns = nlohmann::json::array(), times = columns, claims = columns;
  for (const ColumnChange& c : comparison.columns) {
    columns.push_back({{"column", c.column},
                       {"change", to_string(c.difference)},
                       {"cases", c.cases},
                       {"differing", c.differing},
                       {"max_relative_difference", plain_number(c.max_difference)},
                       {"before", plain_number(c.before)},
                       {"after", plain_number(c.after)},
                       {"worst_case", c.worst_case}});
  }
  for (const TimeChange& t : comparison.times) {
    times.push_back(
        {{"column", t.column},
         {"case", t.case_parameters},
         {"change", to_string(t.difference)},
         {"before", plain_number(t.before)},
         {"after", plain_number(t.after)},
         {"before_interval", {plain_number(t.before_interval.low), plain_number(t.before_interval.high)}},
         {"after_interval", {plain_number(t.after_interval.low), plain_number(t.after_interval.high)}},
         {"ratio", plain_number(t.ratio)},
         {"note", t.note}});
  }
  for (const ClaimChange& c : comparison.claims) {
    claims.push_back({{"id", c.id}, {"before", c.before}, {"after", c.after}, {"regressed", c.regressed}});
  }
  return {{"matched_cases", comparison.matched_cases},
          {"regressed", comparison.regressed},
          {"columns", columns},
          {"times", times},
          {"claims", claims},
          {"only_before", comparison.only_before},
          {"only_after", comparison.only_after}};
}

void print_lone(const char* which, const std::vector<std::string>& cases) {
  constexpr std::size_t kShown = 5;
  if (cases.empty()) return;
  print(fmt::format("\n{} cases only in {}:\n", cases.size(), which));
  for (std::size_t i = 0; i < std::min(kShown, cases.size()); ++i) print("  " + one_line(cases[i]) + "\n");
  if (cases.size() > kShown) print(fmt::format("  and {} more\n", cases.size() - kShown));
}

void print_text(const Comparison& comparison) {
  print(fmt::format("{} cases in both reports\n", comparison.matched_cases));
  if (!comparison.columns.empty()) {
    TextTable table({"result", "verdict", "differing", "largest difference", "where"});
    for (const ColumnChange& c : comparison.columns) {
      table.add({{c.column},
                 {to_string(c.difference), colour_of(c.difference)},
                 {fmt::format("{} of {}", c.differing, c.cases)},
                 {c.max_difference > 0 ? fmt::format("{:.2g}: {} to {}", c.max_difference,
                                                     short_number(c.before), short_number(c.after))
                                       : "-"},
                 {c.worst_case}});
    }
    print("\n");
    table.print();
  }
  if (!comparison.times.empty()) {
    TextTable table({"time", "verdict", "before", "after", "ratio", "note"});
    for (const TimeChange& t : comparison.times) {
      table.add({{t.column + " " + t.case_parameters},
                 {to_string(t.difference), colour_of(t.difference)},
                 {short_number(t.before) + " s"},
                 {short_number(t.after) + " s"},
                 {short_number(t.ratio)},
                 {t.note}});
    }
    print("\n");
    table.print();
  }
  for (const ClaimChange& c : comparison.claims) {
    print(fmt::format("\nclaim {}: {} -> {}\n", one_line(c.id), one_line(c.before), one_line(c.after)));
  }
  print_lone("the first", comparison.only_before);
  print_lone("the second", comparison.only_after);
}

}  // namespace

int cmd_compare(const Words& words) {
  CLI::App app;
  prepare(app, "compare",
          "splash compare data/reports/reproduce-quick.h5 out/reproduce/report.h5\n"
          "splash compare before.h5 after.h5 --tolerance 1e-6 --json",
          "Matches the cases of two reports by their parameters. Reproducible results must agree within the "
          "tolerance;\n"
          "times are judged by the intervals of their medians. Exit code 1 where something is DIFFERENT or "
          "SLOWER, a\n"
          "case of the first report is missing in the second, or a reproduced claim no longer is.");
  std::string before, after;
  CompareOptions options;
  bool json = false;
  app.add_option("BEFORE", before, "the report to compare with")->required();
  app.add_option("AFTER", after, "the report in question")->required();
  app.add_option("--tolerance", options.relative_tolerance, "relative, of reproducible numbers (1e-9)")
      ->type_name("X");
  app.add_flag("--json", json, "one object on stdout");
  parse(app, words);
  if (!(options.relative_tolerance >= 0) || std::isinf(options.relative_tolerance)) {
    throw InvalidArgument(
        fmt::format("--tolerance is {}; it must be finite and >= 0", options.relative_tolerance));
  }
  report::Report reports[2] = {report::read_report(before), report::read_report(after)};
  for (report::Report& report : reports) experiments::add_kinds(report);
  const Comparison comparison = compare_reports(reports[0], reports[1], options);
  if (json) {
    print_json(to_json(comparison));
  } else {
    print_text(comparison);
  }
  if (comparison.matched_cases == 0)
    throw InvalidArgument("the two reports have no case in common, so nothing was compared");
  return comparison.regressed || !comparison.only_before.empty() ? kDiffers : kDone;
}

}  // namespace splash::cli
