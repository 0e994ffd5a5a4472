#include "experiments/cli/cpu_view.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "experiments/cli/ceilings_view.h"
#include "experiments/cli/console.h"
#include "experiments/runner/case_json.h"

namespace splash::cli {
namespace {

using namespace analysis;

std::vector<report::Ceiling> ceilings_of_cpu(const report::Report& report) {
  std::vector<report::Ceiling> ceilings;
  std::copy_if(report.ceilings.begin(), report.ceilings.end(), std::back_inserter(ceilings),
               [](const report::Ceiling& ceiling) { return ceiling.name.starts_with(kCpuUnit); });
  return ceilings;
}

void print_problem(const report::Report& report, const std::vector<const CpuCase*>& cases) {
  TextTable table({"implementation", "threads", "ms", "products", "L2", "DRAM", "FLOP/byte", "GFLOP",
                   "of it useful", "L2 MB", "L2 hits", "DRAM MB", "simulated"});
  for (const CpuCase* c : cases) {
    const Floors floors = floors_of(*c, report.ceilings);
    const Level nearest = floors.within(c->seconds).level();
    const auto share = [&](double floor, Level level) {
      return Cell{fmt::format("{:.1f} %", 100 * floor / c->seconds),
                  level == nearest ? Colour::bold : Colour::dim};
    };
    const auto megabytes = [](double bytes) { return Cell{short_number(1e-6 * bytes)}; };
    table.add(
        {{one_line(c->implementation)},
         {fmt::format("{}", c->threads)},
         {short_number(1e3 * c->seconds)},
         share(floors.products, Level::products),
         share(floors.l2, Level::l2),
         share(floors.dram, Level::dram),
         {short_number(c->flops / c->dram_bytes)},
         {short_number(1e-9 * c->flops)},
         {short_number(1e-9 * c->useful_flops), Colour::dim},
         megabytes(c->l2_bytes),
         {std::isnan(c->l2_hit_bytes) ? "-" : fmt::format("{:.1f} %", 100 * c->l2_hit_bytes / c->l2_bytes)},
         megabytes(c->dram_bytes),
         megabytes(c->dram_simulated)});
  }
  table.print();
  print("\n");
}

}  // namespace

std::vector<CpuCase> selected_cpu_cases(const report::Report& report, const std::string& prefix) {
  std::vector<CpuCase> cases = cpu_cases(report);
  std::erase_if(cases, [&](const CpuCase& c) { return !c.implementation.starts_with(prefix); });
  return cases;
}

void print_cpu_cases(const report::Report& report, const std::vector<CpuCase>& cases) {
  print(fmt::format("{}, {} threads, commit {}\n\n", one_line(report.provenance.cpu),
                    report.provenance.threads, one_line(report.provenance.commit)));
  ceilings_table(ceilings_of_cpu(report)).print();
  std::vector<std::string> problems;
  for (const CpuCase& c : cases) {
    if (std::find(problems.begin(), problems.end(), c.problem) == problems.end())
      problems.push_back(c.problem);
  }
  for (const std::string& problem : problems) {
    std::vector<const CpuCase*> of_problem;
    for (const CpuCase& c : cases) {
      if (c.problem == problem) of_problem.push_back(&c);
    }
    print("\n" + paint(one_line(problem), Colour::bold) + "\n");
    print_problem(report, of_problem);
  }
}

void print_cpu_findings(const report::Report& report, const std::vector<CpuCase>& cases) {
  print(fmt::format("{}, {} threads, commit {}\n\n", one_line(report.provenance.cpu),
                    report.provenance.threads, one_line(report.provenance.commit)));
  for (const CpuCase& c : cases) {
    const analysis::Finding finding = finding_of(c, report.ceilings);
    print(fmt::format("{}  {}  {} us  case {}\n  {}, up to {:.3g}x: {}\n\n",
                      paint(one_line(c.implementation), Colour::bold), one_line(c.problem),
                      short_number(1e6 * c.seconds), one_line(c.case_id),
                      paint(to_string(finding.cause), Colour::yellow), finding.gain, finding.sentence));
  }
}

nlohmann::json cpu_findings_json(const report::Report& report, const std::vector<CpuCase>& cases) {
  nlohmann::json list = nlohmann::json::array();
  for (const CpuCase& c : cases) {
    const analysis::Finding finding = finding_of(c, report.ceilings);
    list.push_back(
        {{"case_id", c.case_id},
         {"implementation", c.implementation},
         {"problem", c.problem},
         {"seconds", c.seconds},
         {"findings",
          {{{"cause", to_string(finding.cause)}, {"gain", finding.gain}, {"sentence", finding.sentence}}}}});
  }
  return {{"cpu", report.provenance.cpu}, {"cpu_cases", list}};
}

nlohmann::json cpu_cases_json(const report::Report& report, const std::vector<CpuCase>& cases) {
  using experiments::plain_number;
  nlohmann::json list = nlohmann::json::array();
  for (const CpuCase& c : cases) {
    const Floors floors = floors_of(c, report.ceilings);
    const Floors within = floors.within(c.seconds);
    list.push_back(
        {{"case_id", c.case_id},
         {"implementation", c.implementation},
         {"problem", c.problem},
         {"threads", c.threads},
         {"seconds", c.seconds},
         {"executed_flops", c.flops},
         {"useful_flops", c.useful_flops},
         {"l2_bytes_counted", c.l2_bytes},
         {"dram_bytes_counted", c.dram_bytes},
         {"l2_hit_bytes_simulated", plain_number(c.l2_hit_bytes)},
         {"dram_bytes_simulated", plain_number(c.dram_simulated)},
         {"floor_seconds", {{"products", floors.products}, {"L2", floors.l2}, {"DRAM", floors.dram}}},
         {"nearest", to_string(within.level())},
         {"nearest_share", within.highest() / c.seconds},
         {"flop_per_dram_byte", c.flops / c.dram_bytes}});
  }
  return {{"cpu", report.provenance.cpu},
          {"cpu_cases", list},
          {"cpu_ceilings", ceilings_json(ceilings_of_cpu(report))}};
}

}  // namespace splash::cli
