#pragma once
// Runs the cases of one or several experiments and writes one report. A run that is killed can be resumed at
// any point; its report then equals that of an undisturbed run except for run_id and times.

#include <functional>
#include <string>
#include <vector>

#include "experiments/runner/plan.h"
#include "report/report.h"

namespace splash::experiments {

// What to do with a journal that an interrupted run left behind.
enum class Leftover { refuse, resume, restart };

struct RunRequest {
  std::vector<Definition> definitions;
  bool quick = false;
  Cases cases = Cases::all;
  Shard shard;
  std::string report_path;
  Leftover leftover = Leftover::refuse;
  bool so_far = false;  // with Leftover::resume: no case is run; the report holds those that are done
  bool verbose = false;
  std::string title, argv;
  std::string resume_command;  // shown to whoever interrupts the run
  // Fills report.claims before the report is written; may be empty.
  std::function<void(report::Report&)> judge;
};

struct RunOutcome {
  report::Report report;
  int64_t evaluated = 0, reused = 0;
  bool interrupted = false;  // no report was written; the journal is kept, as after RunRequest::so_far
};

// What a run would do.
struct Preview {
  std::vector<PlannedCase> cases;  // of the shard, in order
  std::vector<std::string> names;  // "accuracy alpha=1.5 k_keep=8"
  std::vector<bool> recorded;      // Leftover::resume keeps its result
  int64_t of_all_shards = 0;
};

// Runs and writes nothing, and needs no device. Throws as run() does for bad cases and for a leftover
// journal.
Preview preview(const RunRequest& request);

// Reports progress on stderr. Throws InvalidArgument before any case runs for a bad case, a path that cannot
// be written, or a leftover journal that is refused. Rethrows a case's error with the case named and its type
// kept.
RunOutcome run(const RunRequest& request);

}  // namespace splash::experiments
