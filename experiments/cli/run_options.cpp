#include "experiments/cli/run_options.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "experiments/cli/claims_view.h"
#include "experiments/cli/places.h"
#include "experiments/runner/narrate.h"

namespace splash::cli {

std::vector<experiments::Definition> chosen_definitions(const std::string& name, const Words& assignments,
                                                        const std::vector<experiments::Claim>& claims) {
  std::vector<experiments::Definition> definitions =
      experiments::find_definitions(name, all_definition_files());
  for (experiments::Definition& definition : definitions) {
    experiments::require_known_claims(definition, claims);
    for (const std::string& assignment : assignments) experiments::override_parameter(definition, assignment);
  }
  return definitions;
}

void add_run_flags(CLI::App& app, RunFlags& flags) {
  app.add_flag("--resume", flags.resume, "go on with an interrupted run; says why a case is run again");
  app.add_flag("--so-far", flags.so_far,
               "with --resume: run nothing, write the report of the cases that are done");
  app.add_flag("--restart", flags.restart, "forget what an interrupted run had found");
  app.add_flag("--json", flags.json, "one object on stdout");
  app.add_flag("--verbose", flags.verbose, "a line on stderr for every case");
}

void apply(const RunFlags& flags, const std::string& name, const Words& words,
           experiments::RunRequest& request) {
  using experiments::Leftover;
  if (flags.resume && flags.restart) throw InvalidArgument("give --resume or --restart, not both");
  if (flags.so_far && !flags.resume)
    throw InvalidArgument("--so-far takes --resume: it writes what an interrupted run has found");
  request.so_far = flags.so_far;
  request.leftover = flags.resume ? Leftover::resume : flags.restart ? Leftover::restart : Leftover::refuse;
  request.verbose = flags.verbose;
  request.argv = command_line();
  Words again;
  std::copy_if(words.begin(), words.end(), std::back_inserter(again), [](const std::string& word) {
    return word != "--resume" && word != "--restart" && word != "--so-far";
  });
  again.emplace_back("--resume");
  request.resume_command = "splash " + name + " " + quoted(again);
}

nlohmann::json outcome_json(const std::string& path, const experiments::RunOutcome& outcome,
                            const experiments::Surprises& surprises) {
  return {{"report", path},
          {"run_id", outcome.report.run_id},
          {"status", outcome.report.status},
          {"cases", outcome.report.cases()},
          {"evaluated", outcome.evaluated},
          {"reused", outcome.reused},
          {"claims", claims_json(outcome.report.claims)},
          {"surprises", surprises.differing},
          {"unsure", surprises.unsure}};
}

int report_surprises(const experiments::Surprises& surprises) {
  for (const auto* sentences : {&surprises.differing, &surprises.unsure})
    for (const std::string& sentence : *sentences) experiments::narrate("{}", sentence);
  if (!surprises.differing.empty()) return kDiffers;
  return surprises.unsure.empty() ? kDone : kUnsure;
}

}  // namespace splash::cli
