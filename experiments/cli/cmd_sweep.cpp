// splash sweep: one experiment as the shards of a cluster's job, and the merge behind them.

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "core/scratch_folder.h"
#include "core/text_file.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/places.h"
#include "experiments/cli/run_options.h"
#include "experiments/cli/sweep_scripts.h"
#include "experiments/runner/plan.h"
#include "report/atomic_file.h"

namespace splash::cli {

using namespace experiments;

namespace {

namespace fs = std::filesystem;

constexpr const char* kGoOn = "finished cases are kept, and the same command goes on";

void start(const Words& words, const std::string& stdout_file = "") {
  const int code = run_program(words, {}, false, stdout_file);
  if (code == 127)
    throw Error(fmt::format("{} could not be started; --submit needs it on the PATH", words.front()));
  if (code != 0) throw Error(fmt::format("{} ended with exit code {}; {}", words.front(), code, kGoOn));
}

// The number of the job that sbatch made of the script.
std::string sbatch(const Words& options, const std::string& script) {
  const ScratchFolder folder;
  report::write_file_atomically(folder.file("said"), {});
  Words words{"sbatch", "--parsable"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(script);
  start(words, folder.file("said"));
  const std::string said = read_text_file("what sbatch said", folder.file("said"), 1 << 16);
  const std::string job = said.substr(0, said.find_first_of(";\n"));  // "number" or "number;cluster"
  if (job.empty() || job.find_first_not_of("0123456789") != std::string::npos)
    throw Error("sbatch --parsable did not tell the number of a job");
  return job;
}

void submit_to_slurm(const SweepPlan& sweep, int64_t cases) {
  const std::string job = sbatch({}, sweep.shard_script());
  const std::string merge = sbatch({"--dependency=afterany:" + job}, sweep.merge_script());
  print(fmt::format("job {}: {} shards of {} cases; job {} then merges them into {}\n", job, sweep.shards,
                    cases, merge, sweep.report));
}

Words launch(const SweepPlan& sweep, const std::string& launcher) {
  Words words{launcher, "-n", fmt::format("{}", sweep.shards)};
  words.insert(words.end(), sweep.options.begin(), sweep.options.end());
  words.insert(words.end(), {"sh", sweep.shard_script()});
  return words;
}

void tell_how_to_start(const SweepPlan& sweep, int64_t cases, const std::string& launcher) {
  print(fmt::format("# {} shards of {} cases, in {}\n", sweep.shards, cases, sweep.folder));
  if (launcher.empty()) {
    print(fmt::format("job=$(sbatch --parsable {})\n", quoted({sweep.shard_script()})));
    print(fmt::format("sbatch --dependency=afterany:${{job%%;*}} {}\n", quoted({sweep.merge_script()})));
  } else {
    print(fmt::format("{}\n", quoted(launch(sweep, launcher))));
    print(fmt::format("sh {}\n", quoted({sweep.merge_script()})));
  }
}

}  // namespace

int cmd_sweep(const Words& words) {
  CLI::App app;
  prepare(
      app, "sweep",
      "splash sweep accuracy --slurm --shards 64 --option=--time=1:00:00\n"
      "splash sweep accuracy --slurm --shards 64 --submit\n"
      "splash sweep accuracy --mpi --shards 8 --set alpha=1.2,1.3 --submit\n"
      "splash sweep accuracy --mpi --launcher srun --shards 8 --out out/sweep.h5",
      "Writes the job that runs an experiment's shards (`splash run --shard i/N`) on a cluster, and the one "
      "that merges\n"
      "their reports when all are there; says how to start them, or starts them with --submit. Both lie in "
      "<report>.sweep.\n"
      "Started again, finished shards have nothing to do and killed ones go on. Build before: a job builds "
      "nothing.");
  std::string name, out, launcher;
  Words assignments, options;
  int64_t shards = 0;
  bool slurm = false, mpi = false, submit = false, quick = false, judged = false;
  app.add_option("EXPERIMENT", name, "as for `splash run`")->required();
  app.add_flag("--slurm", slurm, "an array job, for sbatch");
  app.add_flag("--mpi", mpi, "processes of mpirun, which only starts them");
  app.add_option("--shards", shards, "into how many the cases are cut")->required()->type_name("N");
  app.add_option("--launcher", launcher, "with --mpi: mpirun, mpiexec or srun (mpirun)")->type_name("NAME");
  app.add_option("--option", options, "a word more for sbatch or the launcher; may be repeated")
      ->type_name("WORD")
      ->expected(1)
      ->take_all();
  app.add_flag("--submit", submit, "start it");
  app.add_option("--out", out, "the merged report's file (out/<experiment>.h5)")->type_name("PATH");
  app.add_flag("--quick", quick, "the definition's quick profile");
  app.add_flag("--judged", judged, "only the cases that claims look at");
  app.add_option("--set", assignments, "as for `splash run`")->type_name("P=V,V")->expected(1)->take_all();
  parse(app, words);
  if (slurm == mpi) throw InvalidArgument("give --slurm or --mpi, one of them");
  if (slurm && !launcher.empty()) throw InvalidArgument("--launcher belongs to --mpi; --slurm takes sbatch");
  const Words launchers{"mpirun", "mpiexec", "srun"};
  if (mpi && launcher.empty()) launcher = launchers.front();
  if (mpi && std::ranges::find(launchers, launcher) == launchers.end())
    throw InvalidArgument(fmt::format("--launcher is '{}'; allowed are mpirun, mpiexec and srun", launcher));

  const std::vector<Definition> definitions =
      chosen_definitions(name, assignments, read_claims(claims_folder()));
  const auto cases =
      static_cast<int64_t>(plan(definitions, quick, judged ? Cases::judged : Cases::all).size());
  if (shards < 1 || shards > cases)
    throw InvalidArgument(fmt::format("--shards is {}; {} has {} cases, so it must be from 1 to {}", shards,
                                      name, cases, cases));
  SweepPlan sweep;
  sweep.report = out.empty() ? fmt::format("out/{}.h5", fs::path(name).stem().string()) : out;
  sweep.folder = fs::path(sweep.report).replace_extension(".sweep").string();
  sweep.shards = shards;
  sweep.options = options;
  sweep.run = {"run", name};
  if (quick) sweep.run.emplace_back("--quick");
  if (judged) sweep.run.emplace_back("--judged");
  for (const std::string& assignment : assignments) sweep.run.insert(sweep.run.end(), {"--set", assignment});
  if (slurm) require_plain(sweep);
  report::prepare_place(sweep.report);
  for (const auto& [path, text] :
       {std::pair{sweep.shard_script(), slurm ? slurm_shard(sweep) : mpi_shard(sweep)},
        std::pair{sweep.merge_script(), slurm ? slurm_merge(sweep) : merge(sweep)}}) {
    report::prepare_place(path);
    report::write_file_atomically(path, std::as_bytes(std::span(text)));
  }
  if (!submit) {
    tell_how_to_start(sweep, cases, launcher);
  } else if (slurm) {
    submit_to_slurm(sweep, cases);
  } else {
    start(launch(sweep, launcher));
    start({"sh", sweep.merge_script()});
    print(fmt::format("{}: merged of {} shards\n", sweep.report, sweep.shards));
  }
  return kDone;
}

}  // namespace splash::cli
