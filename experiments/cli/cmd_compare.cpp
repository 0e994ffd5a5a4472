// splash compare: compares two reports of the same experiment.

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/compare.h"
#include "core/text.h"
#include "experiments/claims/case_table.h"
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
                       {"differing_peers", c.differing_peers},
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
         {"runs", {t.runs_before, t.runs_after}},
         {"peer", t.peer},
         {"note", t.note}});
  }
  for (const ClaimChange& c : comparison.claims) {
    claims.push_back({{"id", c.id}, {"before", c.before}, {"after", c.after}, {"regressed", c.regressed}});
  }
  return {{"matched_cases", comparison.matched_cases},
          {"regressed", comparison.regressed},
          {"lost", comparison.lost},
          {"columns", columns},
          {"times", times},
          {"claims", claims},
          {"only_before", comparison.only_before},
          {"only_after", comparison.only_after}};
}

void print_lone(const char* which, const std::vector<std::string>& cases) {
  constexpr std::size_t kShown = 5;
  if (cases.empty()) return;
  print(fmt::format("\n{} cases only {}:\n", cases.size(), which));
  for (std::size_t i = 0; i < std::min(kShown, cases.size()); ++i) print("  " + one_line(cases[i]) + "\n");
  if (cases.size() > kShown) print(fmt::format("  and {} more\n", cases.size() - kShown));
}

// "2 SLOWER, 1 FASTER, 12 SAME": how many of each, the changes first.
template <class Changes>
std::string counted(const char* what, const Changes& changes) {
  std::string text;
  for (const Difference found : {Difference::different, Difference::slower, Difference::faster,
                                 Difference::unsure, Difference::same}) {
    const auto count = std::ranges::count_if(changes, [&](const auto& c) { return c.difference == found; });
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, to_string(found));
  }
  return text.empty() ? "" : fmt::format("{}: {}\n", what, text);
}

// The worst change first; what stayed the same is left out unless all are wanted.
std::vector<TimeChange> in_order(std::vector<TimeChange> times, bool all) {
  const auto place = [](const TimeChange& t) {
    const int group = t.difference == Difference::slower   ? 0
                      : t.difference == Difference::faster ? 1
                      : t.difference == Difference::unsure ? 2
                                                           : 3;
    const double change = std::abs(std::log(t.ratio));
    return std::pair(2 * group + t.peer, std::isnan(change) ? 0 : -change);
  };
  if (!all) std::erase_if(times, [](const TimeChange& t) { return t.difference == Difference::same; });
  std::ranges::stable_sort(times, {}, place);
  return times;
}

std::string side(double seconds, int64_t runs) {
  return short_number(seconds) + " s" + (runs > 1 ? fmt::format(" ({} runs)", runs) : "");
}

void print_columns(const Comparison& comparison, bool all) {
  TextTable table({"result", "verdict", "differing", "largest difference", "where"});
  bool any = false;
  std::string case_before;
  for (const ColumnChange& c : comparison.columns) {
    if (c.difference == Difference::same && !all) continue;
    any = true;
    const bool again = !c.worst_case.empty() && c.worst_case == case_before;
    case_before = c.worst_case;
    table.add({{c.column},
               {to_string(c.difference), colour_of(c.difference)},
               {fmt::format("{} of {}", c.differing, c.cases) +
                (c.differing_peers > 0 ? fmt::format(", {} of peers", c.differing_peers) : "")},
               {c.max_difference > 0 ? fmt::format("{:.2g}: {} to {}", c.max_difference,
                                                   short_number(c.before), short_number(c.after))
                                     : "-"},
               {again ? "the same case" : c.worst_case}});
  }
  if (!any) return;
  print("\n");
  table.print();
}

void print_times(const Comparison& comparison, bool all) {
  const std::vector<TimeChange> times = in_order(comparison.times, all);
  if (times.empty()) return;
  TextTable table({"time", "verdict", "before", "after", "ratio", "note"});
  for (const TimeChange& t : times) {
    table.add({{t.column + " " + t.case_parameters},
               {to_string(t.difference), t.peer ? Colour::dim : colour_of(t.difference)},
               {side(t.before, t.runs_before)},
               {side(t.after, t.runs_after)},
               {short_number(t.ratio)},
               {t.peer ? "a peer; " + t.note : t.note}});
  }
  print("\n");
  table.print();
}

// What changed comes first.
void print_text(const Comparison& comparison, bool all) {
  print(fmt::format("{} case{} on both sides\n", comparison.matched_cases,
                    comparison.matched_cases == 1 ? "" : "s"));
  if (comparison.matched_cases > 0)
    print(counted("results", comparison.columns) + counted("times", comparison.times));
  for (const ClaimChange& c : comparison.claims)
    print(fmt::format("claim {}: {} -> {}\n", one_line(c.id), one_line(c.before), one_line(c.after)));
  print_columns(comparison, all);
  print_times(comparison, all);
  print_lone("before", comparison.only_before);
  print_lone("after", comparison.only_after);
  if (!all) print("\n--all also lists what is the SAME\n");
}

std::vector<report::Report> read_side(const std::string& first, const Words& others, const Words& where) {
  std::vector<report::Report> runs;
  std::set<std::string> seen;
  Words paths{first};
  paths.insert(paths.end(), others.begin(), others.end());
  for (const std::string& path : paths) {
    report::Report& run = runs.emplace_back(report::read_report(path));
    if (!run.run_id.empty() && !seen.insert(run.run_id).second)
      throw InvalidArgument(
          fmt::format("{} is a run that is there already; runs of one side must differ", path));
    experiments::add_kinds(run);
    experiments::Filter filter;
    for (const std::string& assignment : where) experiments::add_where(filter, run, assignment);
    if (where.empty()) continue;
    experiments::keep_cases(run, filter);
    run.claims.clear();  // they are about all cases
  }
  return runs;
}

}  // namespace

int cmd_compare(const Words& words) {
  CLI::App app;
  prepare(
      app, "compare",
      "splash compare data/reports/reproduce-quick.h5 out/reproduce/report.h5\n"
      "splash compare before.h5 after.h5 --where experiment=cpu-speed --threshold 0.05\n"
      "splash compare b1.h5 a1.h5 --before-runs b2.h5 b3.h5 --after-runs a2.h5 a3.h5",
      "Matches the cases of two reports by kind and parameters, and prints what changed first. Reproducible\n"
      "results must agree within the tolerance. Times are judged by the intervals of their medians or, "
      "where both\n"
      "sides have several runs, by the spread between the runs. Exit code 1 where something is DIFFERENT "
      "or SLOWER,\n"
      "a case of the first report is missing in the second, or a reproduced claim no longer is; peers "
      "(torch-…)\n"
      "never decide it.");
  std::string before, after;
  Words before_runs, after_runs, where;
  CompareOptions options;
  bool json = false, all = false;
  app.add_option("BEFORE", before, "the report to compare with")->required();
  app.add_option("AFTER", after, "the report in question")->required();
  app.add_option("--before-runs", before_runs, "more runs of the first side")->type_name("REPORT...");
  app.add_option("--after-runs", after_runs, "more runs of the second side")->type_name("REPORT...");
  app.add_option("--where", where, "only these cases, as for `splash table`; then without claims")
      ->type_name("NAME=V,V")
      ->expected(1)
      ->take_all();
  app.add_option("--tolerance", options.relative_tolerance, "relative, of reproducible numbers (1e-9)")
      ->type_name("X");
  app.add_option("--threshold", options.time_threshold, "share by which medians of times may differ (0.02)")
      ->type_name("X");
  app.add_option("--confidence", options.confidence, "of intervals and of the order of runs (0.95)")
      ->type_name("X");
  app.add_flag("--all", all, "list what is the SAME, too");
  app.add_flag("--json", json, "one object on stdout");
  parse(app, words);
  for (const auto& [name, value] : {std::pair("--tolerance", options.relative_tolerance),
                                    std::pair("--threshold", options.time_threshold)}) {
    if (!(value >= 0) || std::isinf(value))
      throw InvalidArgument(fmt::format("{} is {}; it must be finite and >= 0", name, value));
  }
  if (!(options.confidence >= 0.5 && options.confidence < 1))
    throw InvalidArgument(
        fmt::format("--confidence is {}; it must be at least 0.5 and below 1", options.confidence));
  const Comparison comparison =
      compare_runs(read_side(before, before_runs, where), read_side(after, after_runs, where), options);
  if (json) {
    print_json(to_json(comparison));
  } else {
    print_text(comparison, all);
  }
  if (comparison.matched_cases == 0)
    throw InvalidArgument("the two reports have no case in common, so nothing was compared");
  return comparison.regressed || comparison.lost ? kDiffers : kDone;
}

}  // namespace splash::cli
