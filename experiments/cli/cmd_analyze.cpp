// splash analyze: how far the kernels of a report are from the machine's ceilings, and how they fill the GPU.

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/cache/simulated.h"
#include "analysis/launches.h"
#include "analysis/roofline.h"
#include "experiments/cli/ceilings_view.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/cpu_view.h"
#include "experiments/cli/decode_view.h"
#include "experiments/cli/kernel_selection.h"
#include "experiments/cli/profiled_view.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using namespace analysis;

struct Analysed {
  KernelCase kernel;
  Floors floors;
  Occupancy occupancy;
  std::optional<SimulatedCase> simulated;
  double exponentials = 0;  // seconds; NaN: not known
};

std::vector<Analysed> analyse(const report::Report& report, std::vector<KernelCase> kernels,
                              const Multiprocessors& machine) {
  std::vector<Analysed> result;
  kernels = described_kernels(std::move(kernels), machine, report.ceilings);
  for (KernelCase& kernel : kernels) {
    Analysed a{
        .kernel = std::move(kernel), .floors = {}, .occupancy = {}, .simulated = {}, .exponentials = 0};
    a.floors = floors_of(a.kernel, report.ceilings);
    a.occupancy = occupancy_of(machine, a.kernel.use);
    a.simulated = simulated_case(report, a.kernel.row);
    a.exponentials = exponential_seconds(a.kernel, machine, report.ceilings);
    result.push_back(std::move(a));
  }
  return result;
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

// Bold for the level that comes nearest to explaining the time, dim for the others.
Colour colour_of(const Analysed& a, Level level) {
  return a.floors.within(a.kernel.seconds).level() == level ? Colour::bold : Colour::dim;
}

TextTable roofline_table(const std::vector<const Analysed*>& cases) {
  TextTable table({"kernel", "us", "products", "exp", "L2", "DRAM", "FLOP/byte", "blocks", "limit", "warps",
                   "waves", "wave yield"});
  for (const Analysed* a : cases) {
    const auto share = [&](double floor, Level level) {
      return Cell{percent(floor / a->kernel.seconds), colour_of(*a, level)};
    };
    table.add({{a->kernel.implementation},
               {short_number(1e6 * a->kernel.seconds)},
               share(a->floors.products, Level::products),
               {a->exponentials > 0 ? percent(a->exponentials / a->kernel.seconds) : "-", Colour::dim},
               share(a->floors.l2, Level::l2),
               share(a->floors.dram, Level::dram),
               {short_number(a->kernel.flops / a->kernel.dram_bytes)},
               {fmt::format("{}", a->occupancy.blocks)},
               {to_string(a->occupancy.limit), Colour::dim},
               {percent(a->occupancy.warps_share)},
               {short_number(a->occupancy.waves)},
               {percent(a->occupancy.wave_yield)}});
  }
  return table;
}

// For calls of several kernels: each kernel's share of the time, and how it fills the GPU. Blocks are marked
// as an upper bound if the registers are not recorded.
TextTable launches_table_of(const std::vector<const Analysed*>& cases, const Multiprocessors& machine) {
  TextTable table({"launches of", "kernel", "us", "", "blocks", "limit", "warps", "waves", "wave yield"});
  for (const Analysed* a : cases) {
    for (const Launch& launch : a->kernel.all) {
      const Occupancy occupancy = occupancy_of(machine, launch.use);
      const bool longest = &launch == longest_launch(a->kernel);
      table.add({{a->kernel.implementation},
                 {launch.kernel, longest ? Colour::bold : Colour::none},
                 {short_number(1e6 * launch.seconds)},
                 {a->kernel.launches_seen ? "by counters" : "estimated", Colour::dim},
                 {fmt::format("{}{}", launch.use.registers == 0 ? "up to " : "", occupancy.blocks)},
                 {to_string(occupancy.limit), Colour::dim},
                 {percent(occupancy.warps_share)},
                 {short_number(occupancy.waves)},
                 {percent(occupancy.wave_yield)}});
    }
  }
  return table;
}

// How much of what the blocks ask for the caches hold, and how much comes from DRAM.
TextTable simulated_table_of(const std::vector<const Analysed*>& cases) {
  const auto megabytes = [](double bytes) { return Cell{short_number(1e-6 * bytes)}; };
  TextTable table(
      {"simulated", "L1 hits", "L2 MB", "L2 hits", "DRAM MB", "counted", "block KB", "wave MB", "L2 holds"});
  for (const Analysed* a : cases) {
    if (!a->simulated) continue;
    const SimulatedCase& s = *a->simulated;
    table.add({{a->kernel.implementation},
               {percent(s.l1_hit_bytes / (s.l1_hit_bytes + s.l2_bytes))},
               megabytes(s.l2_bytes),
               {percent(s.l2_hit_bytes / s.l2_bytes)},
               megabytes(s.dram_read_bytes + s.dram_write_bytes),
               megabytes(a->kernel.dram_bytes),
               {short_number(1e-3 * s.block_working_set)},
               megabytes(s.wave_working_set),
               {std::isnan(s.l2_holds_keys) ? "-" : fmt::format("{} keys", s.l2_holds_keys)}});
  }
  return table;
}

// Prints the tables of each problem, in the report's order of problems.
void print_tables(const std::vector<Analysed>& cases, const Multiprocessors& machine) {
  std::vector<std::string> problems;
  for (const Analysed& a : cases) {
    if (std::find(problems.begin(), problems.end(), a.kernel.problem) == problems.end())
      problems.push_back(a.kernel.problem);
  }
  for (const std::string& problem : problems) {
    std::vector<const Analysed*> of_problem;
    for (const Analysed& a : cases) {
      if (a.kernel.problem == problem) of_problem.push_back(&a);
    }
    print(paint(problem, Colour::bold) + "\n");
    roofline_table(of_problem).print();
    print("\n");
    if (std::any_of(of_problem.begin(), of_problem.end(),
                    [](const auto* a) { return longest_launch(a->kernel); })) {
      launches_table_of(of_problem, machine).print();
      print("\n");
    }
    if (std::any_of(of_problem.begin(), of_problem.end(), [](const auto* a) { return a->simulated; })) {
      simulated_table_of(of_problem).print();
      print("\n");
    }
  }
}

nlohmann::json to_json(const SimulatedCase& simulated) {
  nlohmann::json json = nlohmann::json::object();
  for (const SimulatedColumn& column : simulated_columns()) json[column.info.name] = simulated.*column.member;
  return json;
}

nlohmann::json to_json(const Launch& launch, bool seen, const Multiprocessors& machine) {
  const Occupancy occupancy = occupancy_of(machine, launch.use);
  return {{"kernel", launch.kernel},
          {"seconds", launch.seconds},
          {"seconds_from", seen ? "counters" : "estimate"},
          {"blocks", launch.use.blocks},
          {"threads", launch.use.threads},
          {"registers", launch.use.registers},
          {"shared_bytes", launch.use.shared_bytes},
          {"blocks_per_multiprocessor", occupancy.blocks},
          {"limit", to_string(occupancy.limit)},
          {"waves", occupancy.waves},
          {"wave_yield", occupancy.wave_yield}};
}

nlohmann::json to_json(const Analysed& a, const Multiprocessors& machine) {
  nlohmann::json json = {
      {"case_id", a.kernel.case_id},
      {"implementation", a.kernel.implementation},
      {"problem", a.kernel.problem},
      {"seconds", a.kernel.seconds},
      {"executed_flops", a.kernel.flops},
      {"dram_bytes_counted", a.kernel.dram_bytes},
      {"l2_bytes_counted", a.kernel.l2_bytes},
      {"unit", a.kernel.unit},
      {"floor_seconds", {{"products", a.floors.products}, {"L2", a.floors.l2}, {"DRAM", a.floors.dram}}},
      {"exponentials", a.kernel.exponentials},
      {"exponential_seconds", a.exponentials},
      {"nearest", to_string(a.floors.within(a.kernel.seconds).level())},
      {"nearest_share", a.floors.within(a.kernel.seconds).highest() / a.kernel.seconds},
      {"flop_per_dram_byte", a.kernel.flops / a.kernel.dram_bytes},
      {"flop_per_l2_byte", a.kernel.flops / a.kernel.l2_bytes},
      {"launches", a.kernel.launches},
      {"kernel", a.kernel.kernel},
      {"blocks", a.kernel.use.blocks},
      {"blocks_per_multiprocessor", a.occupancy.blocks},
      {"limit", to_string(a.occupancy.limit)},
      {"warps_share", a.occupancy.warps_share},
      {"waves", a.occupancy.waves},
      {"last_wave", a.occupancy.last_wave},
      {"wave_yield", a.occupancy.wave_yield}};
  if (longest_launch(a.kernel) != nullptr) {
    for (const Launch& launch : a.kernel.all)
      json["kernels"].push_back(to_json(launch, a.kernel.launches_seen, machine));
  }
  if (a.simulated) json["simulated"] = to_json(*a.simulated);
  return json;
}

// A profiled kernel's shares come from the profiler, and nothing of it may be counted.
nlohmann::json profiled_json(const Analysed& a, const report::Report& report,
                             const Multiprocessors& machine) {
  nlohmann::json json = to_json(a, machine);
  json["resources"] = resources_json(a.kernel, machine, report.ceilings);
  json["impossible"] = a.kernel.warning;
  json["warp_stalls"] = a.kernel.stalls.shares;
  if (std::isnan(a.floors.highest())) json["nearest"] = nullptr;
  return json;
}

// Prints the analysis, or puts it into the object.
void analyse_kernels(const report::Report& report, const std::string& prefix, nlohmann::json* object) {
  std::vector<KernelCase> selected = selected_kernels(report, prefix, "", Calls::all);
  const Multiprocessors machine = machine_of(report).multiprocessors;
  std::vector<Analysed> cases = analyse(report, std::move(selected), machine);
  if (object != nullptr) {
    nlohmann::json kernels = nlohmann::json::array();
    for (const Analysed& a : cases)
      kernels.push_back(a.kernel.profiled ? profiled_json(a, report, machine) : to_json(a, machine));
    *object = {{"gpu", report.provenance.gpu}, {"kernels", kernels}};
    return;
  }
  std::vector<KernelCase> all;
  for (const Analysed& a : cases) all.push_back(a.kernel);
  print(fmt::format("{}{}\n", origin_line(report, all), questioned_lines(report.ceilings)));
  std::vector<KernelCase> profiled = all;
  std::erase_if(profiled, [](const KernelCase& kernel) { return !kernel.profiled; });
  if (!profiled.empty()) {
    print(impossible_lines(profiled));
    profiled_table(profiled, machine, report.ceilings).print();
  }
  std::erase_if(cases, [](const Analysed& a) { return a.kernel.profiled; });
  print_tables(cases, machine);
  const auto others = std::count_if(cases.begin(), cases.end(), [](const auto& c) { return !c.simulated; });
  if (others > 0) print(fmt::format("{} of {} cases were not simulated\n", others, cases.size()));
}

}  // namespace

int cmd_analyze(const Words& words) {
  CLI::App app;
  prepare(
      app, "analyze",
      "splash analyze data/reports/ladders-h200.h5 --kernels wmma\n"
      "splash analyze data/reports/ladders-h200.h5 --json | jq '.kernels[] | select(.nearest_share > 0.5)'",
      "Where the kernels of a report stand: the time that each level would need at its measured ceiling "
      "for what a\n"
      "kernel asks of it (counted bytes, executed FLOPs), as a share of the time taken; how the "
      "launch fills the\n"
      "GPU; and what simulated caches make of its accesses, as far as the report tells. Of implementations "
      "on the CPU\n"
      "the same, below the processor's ceilings; of steps of decode what they read. Needs no GPU.");
  std::string path, prefix;
  bool json = false;
  add_kernel_options(app, path, prefix);
  app.add_flag(
      "--json", json,
      "one object: gpu and kernels or decode_steps, or cpu, cpu_cases and cpu_ceilings, in plain units");
  parse(app, words);

  const report::Report report = report::read_report(path);
  const std::vector<CpuCase> on_cpu = selected_cpu_cases(report, prefix);
  const std::vector<StepReading> steps = selected_steps(report, prefix);
  const bool has_kernels = report.find("executed_flops") != nullptr;
  const bool others_alone =
      (!on_cpu.empty() || !steps.empty()) && (!has_kernels || kernel_cases(report, Calls::all).empty());
  nlohmann::json object = nlohmann::json::object();
  if (!others_alone) analyse_kernels(report, prefix, json ? &object : nullptr);
  if (json) {
    if (!on_cpu.empty()) object.update(cpu_cases_json(report, on_cpu));
    if (!steps.empty()) object.update(steps_json(report, steps));
    print_json(object);
    return kDone;
  }
  if (!on_cpu.empty()) print_cpu_cases(report, on_cpu);
  if (!steps.empty()) print_steps(report, steps);
  return kDone;
}

}  // namespace splash::cli
