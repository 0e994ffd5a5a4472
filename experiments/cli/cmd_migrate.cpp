// splash migrate: gives an older report the labels and the storage that this build would give it.

#include <fmt/format.h>

#include "build_info.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/kinds/support/migrate.h"
#include "experiments/runner/provenance.h"
#include "report/io.h"

namespace splash::cli {

int cmd_migrate(const Words& words) {
  CLI::App app;
  prepare(
      app, "migrate", "splash migrate data/reports/cpu-speed.h5 --out cpu-speed.h5",
      "Writes an older report as this build would have written it: parameters that have no effect on a case "
      "are missing,\n"
      "those of captured inputs are the capture's, kernels have their names, and text is stored so that "
      "netCDF's tools\n"
      "copy it. What was measured stays as it is; the history says what was done.");
  std::string path, out;
  app.add_option("report", path, "an HDF5 report")->required()->type_name("REPORT");
  app.add_option("-o,--out", out, "the report's file; may be the same")->required()->type_name("REPORT");
  parse(app, words);

  report::Report report = report::read_report(path);
  const experiments::Migrated migrated = experiments::migrate(report);
  const std::string what = fmt::format("{} entries of parameters and {} names of kernels put right",
                                       migrated.parameters, migrated.kernel_names);
  report.history += fmt::format("{}{} commit {}: {}: {}", report.history.empty() ? "" : "\n",
                                experiments::utc_now(), build::git_commit(), command_line(), what);
  report::write_report(out, report);
  print(fmt::format("{}: {}\n", out, what));
  return kDone;
}

}  // namespace splash::cli
