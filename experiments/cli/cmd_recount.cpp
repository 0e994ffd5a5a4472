// splash recount: renews the counts of a recorded report's kernels from today's declarations.

#include <fmt/format.h>

#include "build_info.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kernel_selection.h"
#include "experiments/kinds/support/recount.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/provenance.h"
#include "gpu/engine/tuned.h"
#include "gpu/engine/variant.h"
#include "report/atomic_file.h"
#include "report/io.h"

namespace splash::cli {

int cmd_recount(const Words& words) {
  CLI::App app;
  prepare(
      app, "recount", "splash recount data/reports/ladders-h200.h5 --out ladders-h200.h5",
      "Writes a report in which FLOPs, bytes, roofs and simulated caches are what this build's declarations "
      "say of\n"
      "its kernels: for reports that were recorded before a declaration was put right. What was measured "
      "stays as it\n"
      "is; the history says what was done. Needs no GPU, but a build with CUDA.");
  std::string path, prefix, out;
  add_kernel_options(app, path, prefix);
  app.add_option("-o,--out", out, "the report's file")->required()->type_name("REPORT");
  bool keep_simulated = false;
  app.add_flag(
      "--keep-simulated", keep_simulated,
      "caches are not simulated again, which takes most of the time: what the report has of them stays");
  parse(app, words);
  report::prepare_place(out);

  gpu::use_tuned({});  // rungs that chose by rule are counted as they were run
  report::Report report = report::read_report(path);
  const auto kernels = selected_kernels(report, prefix);  // throws if there is none
  static_cast<void>(
      gpu::find_variant(kernels.front().implementation));  // throws if this build lacks the variant
  const experiments::Recounted recounted = experiments::recount(
      report, prefix, [](const std::string& kernel) { experiments::narrate("{}", kernel); }, !keep_simulated);
  report.history += fmt::format("{}{} commit {}: {}", report.history.empty() ? "" : "\n",
                                experiments::utc_now(), build::git_commit(), command_line());
  report::write_report(out, report);
  print(fmt::format("{} kernels counted, {} of them otherwise than before\n", recounted.cases,
                    recounted.changed));
  return kDone;
}

}  // namespace splash::cli
