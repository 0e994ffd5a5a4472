// splash ceilings: what the GPU reaches where nothing is in the way, beside what its data sheet says.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/report/atomic_file.h"
#include "analysis/report/io.h"
#include "experiments/cli/ceilings_view.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/runner/ceilings.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/provenance.h"
#include "gpu/device.h"

namespace splash::cli {
namespace {

using analysis::Ceiling;

analysis::Report make_report(const std::string& device, const std::vector<Ceiling>& ceilings,
                             const std::string& started) {
  analysis::Report report;
  report.title = "Ceilings of " + device;
  report.run_id = experiments::new_run_id();
  report.provenance = experiments::collect_provenance({}, {}, command_line());
  report.provenance.started = started;
  report.provenance.finished = experiments::utc_now();
  report.history = fmt::format("{} {}", report.provenance.finished, command_line());
  report.ceilings = ceilings;
  return report;
}

}  // namespace

int cmd_ceilings(const Words& words) {
  CLI::App app;
  prepare(app, "ceilings",
          "splash ceilings\n"
          "splash ceilings --out out/ceilings.h5\n"
          "splash ceilings --device 1 --json",
          "Measures what the GPU reaches where nothing is in the way: bandwidth of DRAM, L2 and shared "
          "memory, rates of\n"
          "plain and of tensor products, cost of a launch. Takes some 4 seconds; nothing else should run on "
          "the device.");
  int device = 0;
  std::string out;
  bool json = false;
  app.add_option("--device", device, "which GPU, as splash doctor counts them (0)")->type_name("N");
  app.add_option("--out", out, "write a report as well")->type_name("FILE");
  app.add_flag("--json", json, "one object: device and ceilings, in plain units");
  parse(app, words);
  if (!out.empty()) analysis::prepare_place(out);

  const std::string started = experiments::utc_now();
  const std::vector<Ceiling>& ceilings = experiments::measured_ceilings(device);
  const std::string name = gpu::list_devices().at(static_cast<std::size_t>(device)).name;
  if (!out.empty()) analysis::write_report(out, make_report(name, ceilings, started));
  if (json) {
    print_json({{"device", name}, {"ceilings", ceilings_json(ceilings)}});
  } else {
    print(name + "\n\n");
    ceilings_table(ceilings).print();
  }
  if (!out.empty()) experiments::narrate("report {}", out);
  return kDone;
}

}  // namespace splash::cli
