// splash: the command line of the laboratory. Each subcommand has a file of its own. This one dispatches and
// turns errors into sentences and exit codes: 0 done, 1 differs, 2 usage or configuration, 3 no device, 4
// unsure, 130 interrupted.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>

#include <fmt/format.h>

#include "build_info.h"
#include "core/suggest.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/places.h"
#include "experiments/runner/narrate.h"

namespace splash::cli {
namespace {

int cmd_test(const Words& words) {
  CLI::App app;
  prepare(app, "test", "./splash test\n./splash test -R cli",
          "Builds everything and runs every test through ctest; further words are ctest's.\n"
          "It is the front door ./splash that does this: the built program only says so.");
  if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) parse(app, words);
  experiments::narrate("tests are built and run by the front door: ./splash test, in the project's folder");
  return kUsage;
}

const Command kCommands[] = {
    {"list", "experiments, kinds, claims, solvers and workloads that there are", cmd_list},
    {"run", "run one experiment and write its report", cmd_run},
    {"reproduce", "run the whole study: report, plots, and a verdict on every claim", cmd_reproduce},
    {"sweep", "the shards of an experiment as a job of Slurm or MPI, and their merge", cmd_sweep},
    {"merge", "join the reports of shards into one", cmd_merge},
    {"show", "what a report holds", cmd_show},
    {"table", "a statistic of a report's cases by their parameters, as text, Markdown, LaTeX or CSV",
     cmd_table},
    {"paper", "a published table beside what recorded reports hold of the same", cmd_paper},
    {"plot", "the plots of a report, or one of chosen columns, as PNG, SVG or PDF", cmd_plot},
    {"page", "a report as one HTML page for a browser", cmd_page},
    {"seal", "add the checksum line to a report that another program changed", cmd_seal},
    {"compare", "two reports side by side: what differs, what got slower", cmd_compare},
    {"bench", "time and check a kernel of yours, and make a report of it", cmd_bench},
    {"analyze", "where the kernels of a report stand below the ceilings, and how they fill the GPU",
     cmd_analyze},
    {"diagnose", "why the kernels of a report take the time they take, and what to try next", cmd_diagnose},
    {"counters", "what a profiler saw of the kernels of a report, beside what was counted", cmd_counters},
    {"import", "a report of what Nsight Compute printed about any kernels, for analyze and diagnose",
     cmd_import},
    {"what-if", "how long a recorded kernel would take elsewhere, or cut into other tiles", cmd_what_if},
    {"recount", "a recorded report with what today's declarations count of its kernels", cmd_recount},
    {"judge", "a recorded report, judged by today's claims", cmd_judge},
    {"migrate", "an older report with the labels and storage of today", cmd_migrate},
    {"ceilings", "what the GPU reaches: bandwidths, rates and launches, beside its data sheet", cmd_ceilings},
    {"tune", "which of the kernels that compute the same is quickest on this GPU, kept for later runs",
     cmd_tune},
    {"kascade", "a plan of which layers of a model find keys and which reuse them, from captures",
     cmd_kascade},
    {"entmax", "calculator: tau, probabilities and support of a row of scores", cmd_entmax},
    {"new", "a skeleton of a rung, a kind, a claim or a machine, to be filled in", cmd_new},
    {"doctor", "what this machine has, what is missing, and what to do about it", cmd_doctor},
    {"test", "run every test (through the front door ./splash)", cmd_test},
};

std::string help() {
  std::string text =
      "Examples:\n"
      "  splash reproduce                     the whole study, quick profile; writes out/reproduce\n"
      "  splash entmax --alpha 1.5 1.0 2.0 3.0\n"
      "  splash list experiments\n"
      "\n"
      "Adaptive Splash: exact alpha-entmax attention, measured.\n"
      "\n"
      "Usage: splash SUBCOMMAND [OPTIONS]\n"
      "\n"
      "Subcommands:\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<12}{}\n", command.name, command.summary);
  text +=
      "\n"
      "splash SUBCOMMAND --help tells more. Data goes to stdout, narration to stderr; --json where data is "
      "printed.\n"
      "Exit codes: 0 done, 1 differs from what was recorded, 2 usage or configuration, 3 no usable device,\n"
      "4 too uncertain to tell, 130 interrupted (go on with --resume).\n";
  return text;
}

int dispatch(const Words& words) {
  if (words.empty()) {
    experiments::write_stderr(help());
    return kUsage;
  }
  const std::string& name = words[0];
  if (name == "--help" || name == "-h" || name == "help") {
    if (words.size() > 1 && name == "help") return dispatch({words[1], "--help"});
    print(help());
    return kDone;
  }
  if (name == "--version") {
    print(fmt::format("splash {} ({}, {}, {})\n", build::kVersion, build::git_commit(), build::git_state(),
                      build::kBuildType));
    return kDone;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(Words(words.begin() + 1, words.end()));
    names.emplace_back(command.name);
  }
  throw InvalidArgument(fmt::format("there is no subcommand '{}'{}", name, suggestion(name, names)));
}

// The front door builds no CUDA parts for commands that need none. A command that does need them is handed
// back to it.
void return_to_front_door(const Words& words) {
  const std::string door = std::getenv("SPLASH_CUDA_BY");
  experiments::narrate("this needs the CUDA parts, which ./splash builds now");
  setenv("SPLASH_PRESET", "release", 1);
  unsetenv("SPLASH_CUDA_BY");
  Words all{door};
  all.insert(all.end(), words.begin(), words.end());
  try {
    become_program(all, {});
  } catch (const Error& error) {
    throw DeviceError(error.what());
  }
}

int run_words(const Words& words) {
  try {
    return dispatch(words);
  } catch (const NotBuilt&) {
    if (!front_door_builds_cuda()) throw;
  }
  return_to_front_door(words);
  return kNoDevice;
}

int guarded(const Words& words) {
  try {
    return run_words(words);
  } catch (const EndNow& end) {
    return end.code;
  } catch (const DeviceError& error) {
    experiments::narrate("{}", error.what());
    return kNoDevice;
  } catch (const std::bad_alloc&) {
    experiments::narrate("there is not enough memory for this");
    return kUsage;
  } catch (const std::exception& error) {
    experiments::narrate("{}", error.what());
    return kUsage;
  }
}

}  // namespace
}  // namespace splash::cli

int main(int argc, char** argv) {
  // With these ignored, a write to a closed pipe or past a file-size limit is an error like any other.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  splash::cli::set_command_line(argc, argv);
  int code = splash::cli::guarded({argv + 1, argv + argc});
  if (!splash::cli::finish_stdout()) {
    splash::experiments::narrate("the output could not be written to stdout");
    code = std::max(code, splash::cli::kUsage);
  }
  return code;
}
