#pragma once
// The shell scripts of a sweep: one that runs a shard, whose number the scheduler sets, and one that merges.

#include <cstdint>
#include <string>

#include "experiments/cli/command.h"

namespace splash::cli {

struct SweepPlan {
  std::string report;  // the merged one
  std::string folder;  // of scripts, shards' reports and logs
  int64_t shards = 1;
  Words options;  // for the scheduler
  Words run;      // of this program: run EXPERIMENT and what belongs to it

  std::string shard_script() const { return folder + "/shard.sh"; }
  std::string merge_script() const { return folder + "/merge.sh"; }
};

// Throws InvalidArgument if the folder or an option cannot stand in a line of #SBATCH.
void require_plain(const SweepPlan& sweep);

// All begin in the present folder, with the present program and the SPLASH_* variables as they are set now.
// A shard ends with 0 if its report is written, whatever the report says of claims.
std::string slurm_shard(const SweepPlan& sweep);
std::string mpi_shard(const SweepPlan& sweep);
std::string slurm_merge(const SweepPlan& sweep);
std::string merge(const SweepPlan& sweep);  // names the shards that are missing, and ends with 1

}  // namespace splash::cli
