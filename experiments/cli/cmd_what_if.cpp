// splash what-if: predicts how long a recorded kernel would take on another problem or another GPU.

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/launches.h"
#include "analysis/what_if.h"
#include "core/text.h"
#include "experiments/cli/asked_kernel.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kernel_selection.h"
#include "experiments/kinds/support/planned_kernel.h"
#include "experiments/runner/project_root.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using namespace analysis;
using analysis::Machine;
using experiments::Parameters;

// The recorded case of the kernel that agrees with most of the changes.
const KernelCase& starting_case(const report::Report& report, const std::vector<KernelCase>& kernels,
                                const AskedChanges& changes) {
  const auto agreeing = [&](const KernelCase& kernel) -> int64_t {
    if (kernel.profiled) return 0;
    const Parameters recorded = experiments::parameters_of(report, kernel.row);
    return std::count_if(changes.problem.begin(), changes.problem.end(),
                         [&](const auto& change) { return recorded.at(change.first) == change.second; }) +
           (changes.cut.replayed == kernel.replayed ? 1 : 0);
  };
  return *std::max_element(kernels.begin(), kernels.end(),
                           [&](auto& a, auto& b) { return agreeing(a) < agreeing(b); });
}

// Estimates the ceilings of another GPU: those measured here, scaled by the ratio of the data sheets. Data
// sheets print nothing for L2, which is scaled by the ratio of the numbers of multiprocessors.
std::vector<report::Ceiling> ceilings_there(const report::Report& report, const Machine& here,
                                            const Machine& there) {
  std::vector<report::Ceiling> ceilings = report.ceilings;
  for (report::Ceiling& ceiling : ceilings) {
    double ratio = there.peak(ceiling.name, ceiling.dtype) / here.peak(ceiling.name, ceiling.dtype);
    if (ceiling.name.starts_with("l2") && std::isnan(ratio))
      ratio = static_cast<double>(there.multiprocessors.count) / here.multiprocessors.count;
    if (!std::isnan(ratio)) ceiling.measured *= ratio;
    if (std::isnan(ceiling.measured)) ceiling.datasheet = there.peak(ceiling.name, ceiling.dtype);
  }
  return ceilings;
}

void require_peak(const KernelCase& kernel, const Machine& machine) {
  const std::string ceiling = kernel.unit == "float32" ? "fma" : "tensor";
  if (std::isnan(machine.peak(ceiling, kernel.unit)) || std::isnan(machine.peak("dram copy", "")))
    throw InvalidArgument(
        fmt::format("the file of {} has no peak of '{}' in {}", machine.name, ceiling, kernel.unit));
}

void require_scalable(const Machine& here, const Machine& there) {
  if (here.name == there.name || !here.peaks.empty()) return;
  throw InvalidArgument(
      fmt::format("no file of data/machines tells the peaks of {}, so nothing can be scaled to {}", here.name,
                  there.name));
}

// Of an imported kernel, or one on a GPU without a data sheet.
void require_counted(const KernelCase& kernel, const std::vector<report::Ceiling>& ceilings) {
  if (floors_of(kernel, ceilings).sum() > 0) return;
  if (!kernel.profiled)
    throw InvalidArgument(fmt::format("the report has no ceiling of what {} does", kernel.implementation));
  throw InvalidArgument(fmt::format(
      "nothing is counted of {} for which a ceiling is known: the table needs dram__bytes_read.sum and "
      "dram__bytes_write.sum, or FLOPs, and the report a ceiling of them",
      kernel.implementation));
}

struct Side {
  const KernelCase& kernel;
  Floors floors;
  Occupancy occupancy;
};

Side side_of(const KernelCase& kernel, const MeasuredGpu& gpu) {
  return {kernel, floors_of(kernel, gpu.ceilings), occupancy_of(gpu.machine, kernel.use)};
}

nlohmann::json to_json(const Side& side) {
  return {{"problem", side.kernel.problem},
          {"executed_flops", side.kernel.flops},
          {"dram_bytes_counted", side.kernel.dram_bytes},
          {"l2_bytes_counted", side.kernel.l2_bytes},
          {"floor_seconds",
           {{"products", side.floors.products}, {"L2", side.floors.l2}, {"DRAM", side.floors.dram}}},
          {"blocks", side.kernel.use.blocks},
          {"blocks_per_multiprocessor", side.occupancy.blocks},
          {"threads", side.kernel.use.threads},
          {"shared_bytes", side.kernel.use.shared_bytes},
          {"tile_q", side.kernel.tile_q},
          {"tile_k", side.kernel.tile_k},
          {"stages", side.kernel.stages},
          {"waves", side.occupancy.waves},
          {"wave_yield", side.occupancy.wave_yield}};
}

void print_sides(const Side& measured, const Side& asked, const Prediction& prediction) {
  TextTable table({"", "measured", prediction.measured ? "asked" : "predicted"});
  const auto row = [&](const char* name, auto&& of) { table.add({{name}, {of(measured)}, {of(asked)}}); };
  const auto microseconds = [](double seconds) { return short_number(1e6 * seconds); };
  table.add({{"us"},
             {microseconds(measured.kernel.seconds)},
             {fmt::format("{} ({} to {})", microseconds(prediction.seconds), microseconds(prediction.low),
                          microseconds(prediction.high)),
              Colour::bold}});
  row("floor of products, us", [&](const Side& s) { return microseconds(s.floors.products); });
  row("floor of L2, us", [&](const Side& s) { return microseconds(s.floors.l2); });
  row("floor of DRAM, us", [&](const Side& s) { return microseconds(s.floors.dram); });
  row("DRAM MB", [](const Side& s) { return short_number(1e-6 * s.kernel.dram_bytes); });
  row("L2 MB", [](const Side& s) { return short_number(1e-6 * s.kernel.l2_bytes); });
  if (!measured.kernel.profiled) {
    row("tile", [](const Side& s) {
      return fmt::format("{} x {}, {} in flight", s.kernel.tile_q, s.kernel.tile_k, s.kernel.stages);
    });
  }
  row("blocks", [](const Side& s) { return fmt::format("{}", s.kernel.use.blocks); });
  row("a multiprocessor", [](const Side& s) { return fmt::format("{}", s.occupancy.blocks); });
  row("shared KB a block",
      [](const Side& s) { return short_number(1e-3 * static_cast<double>(s.kernel.use.shared_bytes)); });
  row("waves", [](const Side& s) { return short_number(s.occupancy.waves); });
  row("wave yield", [](const Side& s) { return fmt::format("{:.1f} %", 100 * s.occupancy.wave_yield); });
  table.print();
}

void print_reason(const Prediction& prediction, bool cut) {
  if (prediction.measured) {
    print(
        fmt::format("\nIt was measured, as case {}; the interval is that of its median.\n", prediction.from));
  } else {
    print(fmt::format("\nIt takes {:.3g} times its floors, as in case {}; the interval is from {} {}.\n",
                      prediction.factor, prediction.from, prediction.held_out,
                      cut ? "held-out comparisons of tiles" : "held-out cases"));
  }
}

}  // namespace

int cmd_what_if(const Words& words) {
  CLI::App app;
  prepare(app, "what-if",
          "splash what-if data/reports/ladders-h200.h5 wmma/10 q_len=32768 kv_len=32768\n"
          "splash what-if data/reports/ladders-h200.h5 kascade/3-tile-128x64 tile_q=64\n"
          "splash what-if data/reports/ladders-h200.h5 splash/6 k_keep=16\n"
          "splash what-if data/reports/ladders-h200.h5 wmma/8 head_dim=128 --gpu \"NVIDIA L4\"",
          "How long a recorded kernel would take on another problem, cut into other tiles, or on another "
          "GPU: what is\n"
          "counted of it then (of another problem or GPU by its declaration, which needs a build with CUDA), "
          "the\n"
          "measured ceilings (of another GPU: scaled by the data sheets), and what the kernel loses below "
          "them, learnt\n"
          "from its measured cases. The interval is that of eight in ten comparisons within the report. What "
          "was itself\n"
          "measured is answered by that. Needs no GPU.");
  std::string path, kernel_id, case_id, gpu;
  Words settings;
  bool json = false;
  add_report(app, path);
  app.add_option("kernel", kernel_id, "its id, or how it begins")->required()->type_name("KERNEL");
  app.add_option("changes", settings,
                 "tile_q, tile_k, stages, launches, method, and parameters of the problem, as an experiment "
                 "names them")
      ->type_name("NAME=VALUE");
  app.add_option("--case", case_id,
                 "the measured case to start from, or how its id begins (else the one that "
                 "agrees with most changes)")
      ->type_name("ID");
  app.add_option("--gpu", gpu, "another GPU, as its driver names it (data/machines)")->type_name("NAME");
  app.add_flag("--json", json, "one object: measured, predicted");
  parse(app, words);

  const report::Report report = report::read_report(path);
  const AskedChanges changes = parse_changes(settings);
  std::vector<KernelCase> selected = selected_kernels(report, kernel_id, case_id);
  const Machine here = machine_of(report);
  const std::vector<KernelCase> kernels =
      described_kernels(std::move(selected), here.multiprocessors, report.ceilings);
  for (const KernelCase& kernel : kernels) {
    if (kernel.implementation != kernels.front().implementation) {
      throw InvalidArgument(fmt::format("'{}' begins more than one kernel: {} and {}", kernel_id,
                                        kernels.front().implementation, kernel.implementation));
    }
  }
  const Machine there =
      gpu.empty() ? here : analysis::machine_of(gpu, analysis::read_machines(experiments::machines_folder()));
  require_scalable(here, there);
  const KernelCase& start = starting_case(report, kernels, changes);
  const AskedKernel asked = asked_kernel(report, start, changes, here, there);
  if (start.profiled || here.peaks.empty()) {
    require_counted(start, report.ceilings);
  } else {
    require_peak(asked.kernel, there);
  }

  const MeasuredGpu gpu_here{here.multiprocessors, report.ceilings};
  const MeasuredGpu gpu_there{there.multiprocessors, ceilings_there(report, here, there)};
  const KernelCase* const uncut = changes.cut.cuts() ? &asked.uncut : nullptr;
  const auto predicted = [&] {
    const Predictor predictor(
        described_kernels(selected_kernels(report, ""), here.multiprocessors, report.ceilings), gpu_here);
    return gpu.empty() ? predictor.predict(asked.kernel, uncut)
                       : predictor.predict(asked.kernel, gpu_there, uncut);
  };
  const Prediction prediction = asked.measured ? as_measured(start, gpu_here) : predicted();
  const Side before = side_of(start, gpu_here), after = side_of(asked.kernel, gpu_there);
  if (json) {
    nlohmann::json m = to_json(before), p = to_json(after);
    m["seconds"] = start.seconds;
    m["case_id"] = start.case_id;
    p["seconds"] = prediction.seconds;
    p["low"] = prediction.low;
    p["high"] = prediction.high;
    p["gpu"] = there.name;
    print_json({{"implementation", start.implementation},
                {"measured", m},
                {"predicted", p},
                {"factor", prediction.factor},
                {"factor_from", prediction.from},
                {"answered_by", prediction.measured ? "measurement" : "model"},
                {"held_out", prediction.held_out}});
    return kDone;
  }
  print(fmt::format("{}\nmeasured:  {}, {}\npredicted: {}, {}\n\n", paint(start.implementation, Colour::bold),
                    one_line(start.problem), here.name, one_line(asked.kernel.problem), there.name));
  print_sides(before, after, prediction);
  print_reason(prediction, uncut != nullptr);
  return kDone;
}

}  // namespace splash::cli
