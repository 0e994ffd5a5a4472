#pragma once
// The subcommands. Each takes the words after its name and returns the exit code.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/error.h"

namespace splash::cli {

using Words = std::vector<std::string>;

constexpr int kDone = 0, kDiffers = 1, kUsage = 2, kNoDevice = 3, kUnsure = 4, kInterrupted = 130;

struct Command {
  const char* name;
  const char* summary;  // one line for `splash --help`
  int (*run)(const Words& words);
};

int cmd_analyze(const Words& words);
int cmd_bench(const Words& words);
int cmd_ceilings(const Words& words);
int cmd_compare(const Words& words);
int cmd_counters(const Words& words);
int cmd_diagnose(const Words& words);
int cmd_doctor(const Words& words);
int cmd_entmax(const Words& words);
int cmd_import(const Words& words);
int cmd_judge(const Words& words);
int cmd_kascade(const Words& words);
int cmd_list(const Words& words);
int cmd_merge(const Words& words);
int cmd_migrate(const Words& words);
int cmd_new(const Words& words);
int cmd_page(const Words& words);
int cmd_paper(const Words& words);
int cmd_plot(const Words& words);
int cmd_recount(const Words& words);
int cmd_reproduce(const Words& words);
int cmd_run(const Words& words);
int cmd_seal(const Words& words);
int cmd_show(const Words& words);
int cmd_sweep(const Words& words);
int cmd_table(const Words& words);
int cmd_tune(const Words& words);
int cmd_what_if(const Words& words);

// Thrown after help was requested and printed. The command ends with `code`.
struct EndNow {
  int code;
};

// Names the app `splash NAME` and opens its help with the examples, one per line.
void prepare(CLI::App& app, const std::string& name, const std::string& examples, const std::string& what);

// Parses the words. Throws EndNow after --help, and InvalidArgument with one sentence for words that do not
// fit.
void parse(CLI::App& app, const Words& words);

// The command line as it was typed, for provenance. Absolute paths, which hold on one machine only, are
// reduced to the file name.
const std::string& command_line();
void set_command_line(int count, const char* const* words);
// Whether ./splash, the front door, started this program without the CUDA parts and can build them. If so,
// NotBuilt hands the command back to it.
bool front_door_builds_cuda();

std::string quoted(const Words& words);  // quoted for a shell

}  // namespace splash::cli
