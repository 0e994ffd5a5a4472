#pragma once
// What `run`, `reproduce` and `sweep` share: which experiments, the flags of a run, and the summary at its
// end.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "experiments/claims/claim.h"
#include "experiments/claims/judge.h"
#include "experiments/cli/command.h"
#include "experiments/runner/run.h"

namespace splash::cli {

// The experiments that a name, a file or a folder stands for, with the values of --set. Throws
// InvalidArgument for what is none, and for claims that are not known.
std::vector<experiments::Definition> chosen_definitions(const std::string& name, const Words& assignments,
                                                        const std::vector<experiments::Claim>& claims);

struct RunFlags {
  bool resume = false, restart = false, so_far = false, json = false, verbose = false;
};
void add_run_flags(CLI::App& app, RunFlags& flags);

// Sets leftover, verbose, argv and resume_command. Throws InvalidArgument for --resume with --restart.
void apply(const RunFlags& flags, const std::string& name, const Words& words,
           experiments::RunRequest& request);

nlohmann::json outcome_json(const std::string& path, const experiments::RunOutcome& outcome,
                            const experiments::Surprises& surprises);

// Reports on stderr what differs from the record and what the run cannot decide. Returns the exit code.
int report_surprises(const experiments::Surprises& surprises);

}  // namespace splash::cli
