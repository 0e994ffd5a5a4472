#include "experiments/cli/sweep_scripts.h"

#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"

extern char** environ;

namespace splash::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@";

std::string this_program() {
  return quoted({fs::read_symlink("/proc/self/exe").string()});
}

std::string sbatch_lines(const SweepPlan& sweep, const std::string& log) {
  std::string lines = fmt::format("#SBATCH --job-name={}\n#SBATCH --output={}/{}\n",
                                  fs::path(sweep.folder).stem().string(), sweep.folder, log);
  for (const std::string& option : sweep.options) lines += fmt::format("#SBATCH {}\n", option);
  return lines;
}

std::string place() {
  std::string lines = fmt::format("cd {} || exit\n", quoted({fs::current_path().string()}));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string setting = *entry, name = setting.substr(0, setting.find('='));
    if (name.starts_with("SPLASH_") && name != "SPLASH_CUDA_BY")  // a job builds nothing
      lines += fmt::format("export {}={}\n", name, quoted({setting.substr(name.size() + 1)}));
  }
  return lines;
}

std::string run_shard(const SweepPlan& sweep) {
  return fmt::format(
      "{} {} --shard \"$shard/{}\" --resume --out {}\"$shard.h5\"\n"
      "code=$?\n"
      "case $code in 1 | 4) code=0 ;; esac # what the report says of claims is told when all are merged\n"
      "exit $code\n",
      this_program(), quoted(sweep.run), sweep.shards, quoted({sweep.folder + "/shard-"}));
}

std::string merge_lines(const SweepPlan& sweep) {
  return fmt::format(
      "set --\n"
      "missing=\n"
      "for shard in $(seq {0}); do\n"
      "  report={1}\"$shard.h5\"\n"
      "  if [ -f \"$report\" ]; then set -- \"$@\" \"$report\"; else missing=\"$missing $shard\"; fi\n"
      "done\n"
      "if [ -n \"$missing\" ]; then\n"
      "  echo \"splash: of {0} shards these have no report:$missing; start the sweep again, which goes on\" "
      ">&2\n"
      "  exit 1\n"
      "fi\n"
      "exec {2} merge \"$@\" --out {3}\n",
      sweep.shards, quoted({sweep.folder + "/shard-"}), this_program(), quoted({sweep.report}));
}

constexpr const char* kWritten = "# Written by splash sweep.\n";

}  // namespace

void require_plain(const SweepPlan& sweep) {
  if (sweep.folder.find_first_not_of(kPlain) != std::string::npos)
    throw InvalidArgument(
        fmt::format("--slurm writes logs to {}; a line of #SBATCH takes letters, digits and _-+=./:,@ alone: "
                    "choose another --out",
                    sweep.folder));
  for (const std::string& option : sweep.options) {
    if (!option.starts_with('-') || option.find('\n') != std::string::npos)
      throw InvalidArgument(fmt::format(
          "--option is '{}'; sbatch takes options that begin with -, as --option=--time=1:00:00", option));
  }
}

std::string slurm_shard(const SweepPlan& sweep) {
  return fmt::format(
      "#!/bin/sh\n{}#SBATCH --array=1-{}\n{}{}shard=${{SLURM_ARRAY_TASK_ID:?sbatch sets it}}\n{}",
      sbatch_lines(sweep, "shard-%a.log"), sweep.shards, kWritten, place(), run_shard(sweep));
}

std::string mpi_shard(const SweepPlan& sweep) {
  return fmt::format(
      "#!/bin/sh\n{}{}"
      "rank=${{OMPI_COMM_WORLD_RANK:-${{PMIX_RANK:-${{PMI_RANK:-${{SLURM_PROCID:?mpirun, mpiexec or srun "
      "sets "
      "it}}}}}}}}\n"
      "shard=$((rank + 1))\n{}",
      kWritten, place(), run_shard(sweep));
}

std::string slurm_merge(const SweepPlan& sweep) {
  return fmt::format("#!/bin/sh\n{}{}{}{}", sbatch_lines(sweep, "merge.log"), kWritten, place(),
                     merge_lines(sweep));
}

std::string merge(const SweepPlan& sweep) {
  return fmt::format("#!/bin/sh\n{}{}{}", kWritten, place(), merge_lines(sweep));
}

}  // namespace splash::cli
