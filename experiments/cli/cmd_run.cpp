// splash run: runs one experiment or a folder of them and writes one report.

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "experiments/claims/judge.h"
#include "experiments/cli/claims_view.h"
#include "experiments/cli/places.h"
#include "experiments/cli/run_options.h"
#include "experiments/runner/diagnoses.h"

namespace splash::cli {

using namespace experiments;

namespace {

void print_preview(const std::string& path, const Preview& preview, const Shard& shard, bool as_json) {
  const auto recorded = std::count(preview.recorded.begin(), preview.recorded.end(), true);
  if (as_json) {
    nlohmann::json cases = nlohmann::json::array();
    for (std::size_t i = 0; i < preview.cases.size(); ++i) {
      cases.push_back({{"case", preview.names[i]},
                       {"case_index", preview.cases[i].index},
                       {"case_id", preview.cases[i].case_id},
                       {"recorded", static_cast<bool>(preview.recorded[i])}});
    }
    return print_json({{"report", path},
                       {"shard", to_string(shard)},
                       {"of_all_shards", preview.of_all_shards},
                       {"recorded", recorded},
                       {"cases", cases}});
  }
  for (std::size_t i = 0; i < preview.cases.size(); ++i)
    print(fmt::format("{:8} {}{}\n", preview.cases[i].index, one_line(preview.names[i]),
                      preview.recorded[i] ? "  (recorded)" : ""));
  print(fmt::format("{}: {} cases", path, preview.cases.size()));
  if (shard.count > 1) print(fmt::format(" of {}, shard {}", preview.of_all_shards, to_string(shard)));
  print(fmt::format(", {} recorded, {} to run\n", recorded, preview.cases.size() - recorded));
}

}  // namespace

int cmd_run(const Words& words) {
  CLI::App app;
  prepare(
      app, "run",
      "splash run accuracy --quick\n"
      "splash run my-sweep.toml --out sweep.h5 --set alpha=1.25\n"
      "splash run accuracy --set alpha=1.2,1.3,1.5 --set 'scope=[\"row\", \"block\"]' --dry-run\n"
      "splash run my-sweep.toml --resume\n"
      "splash run my-sweep.toml --shard 2/8     (then: splash merge)\n"
      "splash run experiments/ladders           (every experiment of the folder, one report; needs a GPU)",
      "Runs the cases of one experiment, or of a folder of them, in order, and writes its report. Every "
      "finished case is kept in\n"
      "<report>.journal, so that a run killed at any moment can go on with --resume.\n"
      "--set separates numbers by commas and takes a text as it stands; a list in TOML's notation,\n"
      "NAME=[\"a\", \"b\"], is an axis of texts. Claims that ask for other values are left out.");
  std::string name, out, shard;
  Words assignments;
  bool quick = false, judged = false, dry = false;
  RunFlags flags;
  app.add_option("EXPERIMENT", name, "a name of `splash list experiments`, a TOML file, or a folder of them")
      ->required();
  app.add_flag("--quick", quick, "the definition's quick profile");
  app.add_option("--out", out, "the report's file (out/<experiment>.h5)")->type_name("PATH");
  app.add_flag("--judged", judged,
               "only the cases that claims look at: another run for `splash judge --runs`");
  app.add_option("--shard", shard, "only the cases of shard i of N")->type_name("i/N");
  app.add_option("--set", assignments,
                 "values for a parameter, instead of the definition's: several are an axis")
      ->type_name("P=V,V")
      ->expected(1)
      ->take_all();
  app.add_flag("--dry-run", dry, "list the cases, with --resume also which are recorded, and run nothing");
  add_run_flags(app, flags);
  parse(app, words);

  const std::vector<Claim> claims = read_claims(claims_folder());
  RunRequest request;
  request.definitions = chosen_definitions(name, assignments, claims);
  const bool one = request.definitions.size() == 1;
  const std::string stem =
      one ? request.definitions.front().name : std::filesystem::path(name).filename().string();
  request.quick = quick;
  if (judged) request.cases = Cases::judged;
  if (!shard.empty()) request.shard = parse_shard(shard);
  std::string suffix;
  if (request.shard.count > 1) suffix = fmt::format(".{}-of-{}", request.shard.index, request.shard.count);
  request.report_path = out.empty() ? fmt::format("out/{}{}.h5", stem, suffix) : out;
  request.title = one ? request.definitions.front().title : fmt::format("All experiments of {}", stem);
  apply(flags, "run", words, request);
  if (dry) {
    print_preview(request.report_path, preview(request), request.shard, flags.json);
    return kDone;
  }
  const std::vector<Claim> relevant = claims_of(request.definitions, claims);
  request.judge = [&](report::Report& report) {
    experiments::add_diagnoses(report);
    report.claims = judge_all(relevant, request.definitions, report);
  };

  const RunOutcome outcome = run(request);
  if (outcome.interrupted) return kInterrupted;
  const Surprises sentences = surprises(claims, outcome.report.claims);
  if (flags.json) {
    print_json(outcome_json(request.report_path, outcome, sentences));
  } else {
    print(fmt::format("{}: {} cases ({} run, {} kept), {}\n", request.report_path, outcome.report.cases(),
                      outcome.evaluated, outcome.reused, outcome.report.status));
    if (!outcome.report.claims.empty()) {
      print("\n");
      claims_table(outcome.report.claims).print();
    }
  }
  return report_surprises(sentences);
}

}  // namespace splash::cli
