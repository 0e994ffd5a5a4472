// splash analyze: where the kernels of a report stand below the machine's ceilings, and how they fill it.

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/report/io.h"
#include "analysis/roofline.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kernel_selection.h"

namespace splash::cli {
namespace {

using namespace analysis;

struct Analysed {
  KernelCase kernel;
  Floors floors;
  Occupancy occupancy;
};

std::vector<Analysed> analyse(const Report& report, const std::string& prefix) {
  std::vector<KernelCase> kernels = selected_kernels(report, prefix);
  const Multiprocessors machine = multiprocessors_of(report);
  std::vector<Analysed> result;
  for (KernelCase& kernel : kernels) {
    const Floors floors = floors_of(kernel, report.ceilings);
    const Occupancy occupancy = occupancy_of(machine, kernel.use);
    result.push_back({std::move(kernel), floors, occupancy});
  }
  return result;
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

// The level that comes nearest to explaining the time.
Colour colour_of(const Analysed& a, Level level) {
  return a.floors.level() == level ? Colour::bold : Colour::dim;
}

// A table for each problem, in the order in which the report comes to them.
void print_tables(const std::vector<Analysed>& cases) {
  std::vector<std::string> problems;
  for (const Analysed& a : cases) {
    if (std::find(problems.begin(), problems.end(), a.kernel.problem) == problems.end())
      problems.push_back(a.kernel.problem);
  }
  for (const std::string& problem : problems) {
    print(paint(problem, Colour::bold) + "\n");
    TextTable table({"kernel", "us", "products", "L2", "DRAM", "FLOP/byte", "blocks", "limit", "warps",
                     "waves", "wave yield"});
    for (const Analysed& a : cases) {
      if (a.kernel.problem != problem) continue;
      const auto share = [&](double floor, Level level) {
        return Cell{percent(floor / a.kernel.seconds), colour_of(a, level)};
      };
      table.add({{a.kernel.implementation},
                 {short_number(1e6 * a.kernel.seconds)},
                 share(a.floors.products, Level::products),
                 share(a.floors.l2, Level::l2),
                 share(a.floors.dram, Level::dram),
                 {short_number(a.kernel.flops / a.kernel.dram_bytes)},
                 {fmt::format("{}", a.occupancy.blocks)},
                 {to_string(a.occupancy.limit), Colour::dim},
                 {percent(a.occupancy.warps_share)},
                 {short_number(a.occupancy.waves)},
                 {percent(a.occupancy.wave_yield)}});
    }
    table.print();
    print("\n");
  }
}

nlohmann::json to_json(const Analysed& a) {
  return {{"case_id", a.kernel.case_id},
          {"implementation", a.kernel.implementation},
          {"problem", a.kernel.problem},
          {"seconds", a.kernel.seconds},
          {"executed_flops", a.kernel.flops},
          {"dram_bytes_counted", a.kernel.dram_bytes},
          {"l2_bytes_counted", a.kernel.l2_bytes},
          {"unit", a.kernel.unit},
          {"floor_seconds", {{"products", a.floors.products}, {"L2", a.floors.l2}, {"DRAM", a.floors.dram}}},
          {"nearest", to_string(a.floors.level())},
          {"nearest_share", a.floors.highest() / a.kernel.seconds},
          {"flop_per_dram_byte", a.kernel.flops / a.kernel.dram_bytes},
          {"flop_per_l2_byte", a.kernel.flops / a.kernel.l2_bytes},
          {"launches", a.kernel.launches},
          {"blocks", a.kernel.use.blocks},
          {"blocks_per_multiprocessor", a.occupancy.blocks},
          {"limit", to_string(a.occupancy.limit)},
          {"warps_share", a.occupancy.warps_share},
          {"waves", a.occupancy.waves},
          {"last_wave", a.occupancy.last_wave},
          {"wave_yield", a.occupancy.wave_yield}};
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
      "kernel asks of it (counted bytes, executed FLOPs), as a share of the time taken; and how the "
      "launch fills the\n"
      "GPU. Needs no GPU.");
  std::string path, prefix;
  bool json = false;
  add_kernel_options(app, path, prefix);
  app.add_flag("--json", json, "one object: gpu and kernels, in plain units");
  parse(app, words);

  const Report report = read_report(path);
  const std::vector<Analysed> cases = analyse(report, prefix);
  if (json) {
    nlohmann::json kernels = nlohmann::json::array();
    for (const Analysed& a : cases) kernels.push_back(to_json(a));
    print_json({{"gpu", report.provenance.gpu}, {"kernels", kernels}});
  } else {
    print(fmt::format("{}, commit {}\n\n", report.provenance.gpu, report.provenance.commit));
    print_tables(cases);
  }
  return kDone;
}

}  // namespace splash::cli
