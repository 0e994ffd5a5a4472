// splash judge: judges a recorded report by today's claims.

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "build_info.h"
#include "core/error.h"
#include "experiments/claims/judge.h"
#include "experiments/cli/claims_view.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/places.h"
#include "experiments/runner/provenance.h"
#include "experiments/runner/record.h"
#include "report/io.h"

namespace splash::cli {

using namespace experiments;

namespace {

// The recorded definitions, with the expectations that definitions of the same names have today.
std::vector<Definition> with_todays_expectations(std::vector<Definition> recorded) {
  std::map<std::string, Definition> shipped;
  for (const std::string& file : all_definition_files()) {
    Definition definition = read_definition(file);
    shipped.emplace(definition.name, std::move(definition));
  }
  for (Definition& definition : recorded) {
    const auto today = shipped.find(definition.name);
    if (today == shipped.end()) continue;
    definition.expectations = today->second.expectations;
    drop_excluded_expectations(definition);
  }
  return recorded;
}

// The claims that the definitions name, plus those that the report judged before, which include the
// arithmetic ones; in the order of data/claims.
std::vector<Claim> relevant_claims(const std::vector<Definition>& definitions, const report::Report& report) {
  const std::vector<Claim> all = read_claims(claims_folder()), spoken_of = claims_of(definitions, all);
  std::vector<Claim> relevant;
  for (const Claim& claim : all) {
    const bool before =
        std::ranges::find(report.claims, claim.id, &report::ClaimResult::id) != report.claims.end();
    if (before || find_claim(spoken_of, claim.id) != nullptr) relevant.push_back(claim);
  }
  return relevant;
}

// Throws if one of them is no run of these experiments, or is the same run.
std::vector<report::Report> other_runs(const std::vector<std::string>& paths, const report::Report& report) {
  const auto experiments_of = [](const report::Report& run) {
    const report::Column* const names = run.find("experiment");
    return names == nullptr ? std::set<std::string>{}
                            : std::set<std::string>(names->texts.begin(), names->texts.end());
  };
  std::vector<report::Report> runs;
  std::set<std::string> seen{report.run_id};
  const std::set<std::string> wanted = experiments_of(report);
  for (const std::string& path : paths) {
    runs.push_back(report::read_report(path));
    adopt_names(runs.back(), report);
    if (!seen.insert(runs.back().run_id).second)
      throw InvalidArgument(fmt::format("{} is a run that is there already; runs must differ", path));
    const std::set<std::string> there = experiments_of(runs.back());
    if (std::ranges::none_of(there, [&](const std::string& name) { return wanted.contains(name); })) {
      throw InvalidArgument(fmt::format("{} has none of the experiments {}", path, fmt::join(wanted, ", ")));
    }
  }
  return runs;
}

}  // namespace

int cmd_judge(const Words& words) {
  CLI::App app;
  prepare(
      app, "judge", "splash judge data/reports/ladders-h200.h5 --out ladders-h200.h5",
      "Judges a recorded report again, by the claims of data/claims and what the experiments of its names "
      "expect of\n"
      "them today. What was measured stays as it is; the history says what was done. With --runs a claim is "
      "judged by all\n"
      "runs together: the median of what each measured, from the lowest end of their intervals to the "
      "highest.");
  std::string path, out;
  std::vector<std::string> others;
  app.add_option("report", path, "an HDF5 report")->required()->type_name("REPORT");
  app.add_option("-o,--out", out, "the report's file; may be the same")->required()->type_name("REPORT");
  app.add_option("--runs", others, "other runs of the same experiments, on this machine or others")
      ->type_name("REPORT...");
  parse(app, words);

  report::Report report = report::read_report(path);
  const std::vector<Definition> definitions =
      with_todays_expectations(definitions_of(read_record(report.provenance.experiment_toml)));
  const std::vector<report::ClaimResult> before = report.claims;
  const std::vector<report::Report> runs = other_runs(others, report);
  report.claims = judge_all(relevant_claims(definitions, report), definitions, report, runs);
  const auto changed = std::ranges::count_if(report.claims, [&](const report::ClaimResult& now) {
    const auto was = std::ranges::find(before, now.id, &report::ClaimResult::id);
    return was == before.end() || was->verdict != now.verdict;
  });
  std::string what = fmt::format("{} of {} claims with another verdict", changed, report.claims.size());
  for (const report::Report& run : runs)
    what += fmt::format(", run {} on {} beside it", run.run_id, run.provenance.gpu);
  report.history += fmt::format("{}{} commit {}: {}: {}", report.history.empty() ? "" : "\n", utc_now(),
                                build::git_commit(), command_line(), what);
  report::write_report(out, report);
  print(fmt::format("{}: {}; {}\n", out, what, count_verdicts(report.claims)));
  return kDone;
}

}  // namespace splash::cli
