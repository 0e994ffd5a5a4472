// splash ceilings: the rates that the GPU reaches when nothing hinders it, beside its data sheet; or those of
// the processor.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "experiments/cli/ceilings_view.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/runner/ceilings.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/provenance.h"
#include "gpu/device.h"
#include "report/atomic_file.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using report::Ceiling;

report::Report make_report(const std::vector<Ceiling>& ceilings, const std::string& started) {
  report::Report report;
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
  prepare(
      app, "ceilings",
      "splash ceilings\n"
      "splash ceilings --out out/ceilings.h5\n"
      "splash ceilings --device 1 --json\n"
      "splash ceilings --cpu",
      "Measures what the GPU reaches where nothing is in the way: bandwidth of DRAM, L2 and shared "
      "memory, rates of\n"
      "plain and of tensor products, cost of a launch. Takes some 4 seconds; nothing else should run on "
      "the device.\n"
      "Without a GPU, or with --cpu, what the processor reaches with all threads: multiply-adds, bandwidth "
      "of L1, L2 and\n"
      "DRAM. Takes 2 seconds.");
  int device = 0;
  bool cpu = false;
  std::string out;
  bool json = false;
  const auto* const chosen =
      app.add_option("--device", device, "which GPU, as splash doctor counts them (0)")->type_name("N");
  app.add_flag("--cpu", cpu, "of the processor, also where there is a GPU")->excludes("--device");
  app.add_option("--out", out, "write a report as well")->type_name("FILE");
  app.add_flag("--json", json, "one object: device and ceilings, in plain units");
  parse(app, words);
  if (!out.empty()) report::prepare_place(out);

  const std::string started = experiments::utc_now();
  if (!cpu && chosen->count() == 0 && gpu::list_devices().empty()) {
    if (front_door_builds_cuda()) gpu::require_device();  // throws NotBuilt
    experiments::narrate("no CUDA device ({}): these are the processor's ceilings",
                         gpu::device_unavailable_reason());
    cpu = true;
  }
  const std::vector<Ceiling>& ceilings =
      cpu ? experiments::cpu_ceilings() : experiments::measured_ceilings(device);
  report::Report report = make_report(ceilings, started);
  const std::string name =
      cpu ? report.provenance.cpu : gpu::list_devices().at(static_cast<std::size_t>(device)).name;
  report.title = "Ceilings of " + name;
  if (!out.empty()) report::write_report(out, report);
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
