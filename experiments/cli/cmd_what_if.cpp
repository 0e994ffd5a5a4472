// splash what-if: how long a recorded kernel would take on another problem or another GPU.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/report/io.h"
#include "analysis/what_if.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kernel_selection.h"
#include "experiments/kinds/gpu_problem.h"
#include "experiments/kinds/planned_kernel.h"
#include "experiments/runner/value.h"
#include "gpu/engine/variant.h"

namespace splash::cli {
namespace {

using namespace analysis;
using experiments::Machine;
using experiments::Parameters;

Parameters changes_of(const Words& settings) {
  const std::vector<experiments::ParameterInfo> declared = experiments::problem_parameters();
  Parameters changes;
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    const auto info = std::find_if(declared.begin(), declared.end(), [&](auto& d) { return d.name == name; });
    if (equals == std::string::npos || info == declared.end()) {
      std::string names;
      for (const auto& d : declared) names += (names.empty() ? "" : ", ") + d.name;
      throw InvalidArgument(
          fmt::format("'{}' is not NAME=VALUE with a parameter's name: {}", setting, names));
    }
    changes[name] = experiments::parsed(*info, setting.substr(equals + 1));
  }
  return changes;
}

// Of the kernel's recorded cases the one that agrees with most of the changes.
const KernelCase& starting_case(const Report& report, const std::vector<KernelCase>& kernels,
                                const Parameters& changes) {
  const auto agreeing = [&](const KernelCase& kernel) {
    const Parameters recorded = experiments::parameters_of(report, kernel.row);
    return std::count_if(changes.begin(), changes.end(),
                         [&](const auto& change) { return recorded.at(change.first) == change.second; });
  };
  return *std::max_element(kernels.begin(), kernels.end(),
                           [&](auto& a, auto& b) { return agreeing(a) < agreeing(b); });
}

// Ceilings of another GPU: what was measured here, times the ratio of the data sheets; of L2, for which they
// print nothing, times that of the multiprocessors.
std::vector<Ceiling> ceilings_there(const Report& report, const Machine& here, const Machine& there) {
  std::vector<Ceiling> ceilings = report.ceilings;
  for (Ceiling& ceiling : ceilings) {
    double ratio = there.peak(ceiling.name, ceiling.dtype) / here.peak(ceiling.name, ceiling.dtype);
    if (ceiling.name.starts_with("l2") && std::isnan(ratio))
      ratio = static_cast<double>(there.multiprocessors.count) / here.multiprocessors.count;
    if (!std::isnan(ratio)) ceiling.measured *= ratio;
  }
  return ceilings;
}

void require_peak(const KernelCase& kernel, const Machine& machine) {
  const std::string ceiling = kernel.unit == "float32" ? "fma" : "tensor";
  if (std::isnan(machine.peak(ceiling, kernel.unit)) || std::isnan(machine.peak("dram copy", "")))
    throw InvalidArgument(
        fmt::format("the file of {} has no peak of '{}' in {}", machine.name, ceiling, kernel.unit));
}

struct Side {
  const KernelCase& kernel;
  Floors floors;
  Occupancy occupancy;
};

nlohmann::json to_json(const Side& side) {
  return {{"problem", side.kernel.problem},
          {"executed_flops", side.kernel.flops},
          {"dram_bytes_counted", side.kernel.dram_bytes},
          {"l2_bytes_counted", side.kernel.l2_bytes},
          {"floor_seconds",
           {{"products", side.floors.products}, {"L2", side.floors.l2}, {"DRAM", side.floors.dram}}},
          {"blocks", side.kernel.use.blocks},
          {"blocks_per_multiprocessor", side.occupancy.blocks},
          {"shared_bytes", side.kernel.use.shared_bytes},
          {"waves", side.occupancy.waves},
          {"wave_yield", side.occupancy.wave_yield}};
}

void print_sides(const Side& measured, const Side& asked, const Prediction& prediction) {
  TextTable table({"", "measured", "predicted"});
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
  row("blocks", [](const Side& s) { return fmt::format("{}", s.kernel.use.blocks); });
  row("a multiprocessor", [](const Side& s) { return fmt::format("{}", s.occupancy.blocks); });
  row("shared KB a block",
      [](const Side& s) { return short_number(1e-3 * static_cast<double>(s.kernel.use.shared_bytes)); });
  row("waves", [](const Side& s) { return short_number(s.occupancy.waves); });
  row("wave yield", [](const Side& s) { return fmt::format("{:.1f} %", 100 * s.occupancy.wave_yield); });
  table.print();
}

}  // namespace

int cmd_what_if(const Words& words) {
  CLI::App app;
  prepare(app, "what-if",
          "splash what-if data/reports/ladders-h200.h5 wmma/10 q_len=32768 kv_len=32768\n"
          "splash what-if data/reports/ladders-h200.h5 splash/6 k_keep=16\n"
          "splash what-if data/reports/ladders-h200.h5 wmma/8 head_dim=128 --gpu \"NVIDIA L4\"",
          "How long a recorded kernel would take on another problem or GPU: its declaration's counts for "
          "the new\n"
          "problem, the measured ceilings (of another GPU: scaled by the data sheets), and what the kernel "
          "loses\n"
          "below them, learnt from its measured cases. The interval is that of eight in ten cases that were "
          "predicted\n"
          "from others of the report. Needs no GPU, but a build with CUDA.");
  std::string path, kernel_id, gpu;
  Words settings;
  bool json = false;
  add_report(app, path);
  app.add_option("kernel", kernel_id, "its id, or how it begins")->required()->type_name("KERNEL");
  app.add_option("changes", settings, "parameters of the problem, as an experiment names them")
      ->type_name("NAME=VALUE");
  app.add_option("--gpu", gpu, "another GPU, as its driver names it (data/machines)")->type_name("NAME");
  app.add_flag("--json", json, "one object: measured, predicted");
  parse(app, words);

  const Report report = read_report(path);
  const Parameters changes = changes_of(settings);
  const std::vector<KernelCase> kernels = selected_kernels(report, kernel_id);
  for (const KernelCase& kernel : kernels) {
    if (kernel.implementation != kernels.front().implementation) {
      throw InvalidArgument(fmt::format("'{}' begins more than one kernel: {} and {}", kernel_id,
                                        kernels.front().implementation, kernel.implementation));
    }
  }
  const Machine here = machine_of(report);
  const Machine there =
      gpu.empty() ? here
                  : experiments::machine_of(gpu, experiments::read_machines(experiments::machines_folder()));
  const KernelCase& start = starting_case(report, kernels, changes);
  Parameters parameters = experiments::parameters_of(report, start.row);
  const KernelCase declared = experiments::planned_kernel(start.implementation, parameters, here);
  if (declared.flops != start.flops || declared.l2_bytes != start.l2_bytes) {
    throw InvalidArgument(
        fmt::format("{} counts other work today than when the report was recorded; record it again",
                    start.implementation));
  }
  for (const auto& [name, value] : changes) parameters[name] = value;
  KernelCase asked = experiments::planned_kernel(start.implementation, parameters, there);
  // What only CUDA knows is taken over from the recorded case.
  asked.use.registers = start.use.registers;
  asked.use.shared_bytes += start.use.shared_bytes - declared.use.shared_bytes;
  asked.replayed = start.replayed;
  asked.problem = settings.empty() ? start.problem : fmt::format("with {}", fmt::join(settings, ", "));
  require_peak(asked, there);

  const std::vector<Ceiling> ceilings = ceilings_there(report, here, there);
  const std::vector<KernelCase> measured = kernel_cases(report);
  const Prediction prediction =
      predict(asked, there.multiprocessors, ceilings, measured, here.multiprocessors, report.ceilings);
  const Side before{start, floors_of(start, report.ceilings), occupancy_of(here.multiprocessors, start.use)};
  const Side after{asked, floors_of(asked, ceilings), occupancy_of(there.multiprocessors, asked.use)};
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
                {"held_out", prediction.held_out}});
    return kDone;
  }
  print(fmt::format("{}\nmeasured:  {}, {}\npredicted: {}, {}\n\n", paint(start.implementation, Colour::bold),
                    start.problem, here.name, asked.problem, there.name));
  print_sides(before, after, prediction);
  print(fmt::format(
      "\nIt takes {:.3g} times its floors, as in case {}; the interval is from {} held-out cases.\n",
      prediction.factor, prediction.from, prediction.held_out));
  return kDone;
}

}  // namespace splash::cli
