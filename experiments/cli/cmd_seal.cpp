// splash seal: renews the checksum line at the end of a report that another program changed.

#include <fmt/format.h>

#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "report/io.h"

namespace splash::cli {

int cmd_seal(const Words& words) {
  CLI::App app;
  prepare(
      app, "seal", "splash seal edited.h5\nsplash seal edited.h5 --out sealed.h5",
      "Reads a report that another program changed, such as h5py, and adds the checksum line that it "
      "dropped:\n"
      "damage is then told from data. A report that has its line already stays as it is; one whose line does "
      "not\n"
      "fit is damaged and refused.");
  std::string path, out;
  app.add_option("REPORT", path, "an HDF5 report")->required();
  app.add_option("-o,--out", out, "the sealed report's file (default: REPORT itself)")->type_name("PATH");
  parse(app, words);
  if (out.empty()) out = path;
  report::seal_report(path, out);
  print(fmt::format("{}: sealed\n", out));
  return kDone;
}

}  // namespace splash::cli
