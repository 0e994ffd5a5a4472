// splash merge: joins shards into one report.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "experiments/claims/judge.h"
#include "experiments/cli/claims_view.h"
#include "experiments/cli/command.h"
#include "experiments/cli/places.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/provenance.h"
#include "experiments/runner/record.h"
#include "report/atomic_file.h"
#include "report/io.h"
#include "report/merge.h"

namespace splash::cli {

using namespace experiments;

namespace {

// Number of cases that the record promises and the report lacks.
int64_t missing_cases(const report::Report& report, const std::vector<RecordedExperiment>& experiments) {
  int64_t expected = 0;
  for (const RecordedExperiment& experiment : experiments) expected += experiment.cases;
  return expected - report.cases();
}

}  // namespace

int cmd_merge(const Words& words) {
  CLI::App app;
  prepare(app, "merge", "splash merge out/sweep.1-of-2.h5 out/sweep.2-of-2.h5 -o sweep.h5",
          "Joins the reports of a run's shards and judges the claims again over all cases. Shards are of one "
          "run\n"
          "where kinds and parameters are the same, whatever the definition's file was called.");
  Words files;
  std::string out;
  bool json = false;
  app.add_option("REPORTS", files, "the shards' reports")->required();
  app.add_option("-o,--out", out, "the merged report's file")->required()->type_name("PATH");
  app.add_flag("--json", json, "one object on stdout");
  parse(app, words);
  report::prepare_place(out);

  std::vector<report::Report> shards;
  std::vector<std::string> judged;  // ids of claims that some shard judged
  for (const std::string& file : files) {
    shards.push_back(report::read_report(file));
    adopt_names(shards.back(), shards.front());
    for (const report::ClaimResult& claim : shards.back().claims) judged.push_back(claim.id);
  }
  report::Report merged = report::merge_reports(shards);
  const std::vector<RecordedExperiment> experiments = read_record(merged.provenance.experiment_toml);
  const int64_t missing = missing_cases(merged, experiments);
  if (missing > 0) {
    narrate("{} cases are still missing: the merged report is partial", missing);
    merged.status = "partial";
  }
  std::vector<Claim> claims;
  for (const Claim& claim : read_claims(claims_folder())) {
    if (std::find(judged.begin(), judged.end(), claim.id) != judged.end()) claims.push_back(claim);
  }
  merged.claims = judge_all(claims, definitions_of(experiments), merged);
  merged.history += fmt::format("{}{} {}", merged.history.empty() ? "" : "\n", utc_now(), command_line());
  report::write_report(out, merged);
  if (json) {
    print_json({{"report", out},
                {"status", merged.status},
                {"cases", merged.cases()},
                {"claims", claims_json(merged.claims)}});
  } else {
    print(fmt::format("{}: {} cases of {} reports, {}\n", out, merged.cases(), files.size(), merged.status));
    if (!merged.claims.empty()) {
      print("\n");
      claims_table(merged.claims).print();
    }
  }
  return kDone;
}

}  // namespace splash::cli
