#include "experiments/cli/profiled_view.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/resources.h"
#include "core/text.h"

namespace splash::cli {

using namespace analysis;

TextTable profiled_table(const std::vector<KernelCase>& kernels, const Multiprocessors& machine,
                         const std::vector<report::Ceiling>& ceilings) {
  TextTable table({"kernel", "us", "busiest", "DRAM", "L2", "L1 or shared", "products", "issue slots",
                   "blocks", "limit", "warps", "waves", "wave yield"});
  const auto percent = [](double share) {
    return std::isnan(share) ? "-" : fmt::format("{:.1f} %", 100 * share);
  };
  for (const KernelCase& kernel : kernels) {
    const std::vector<Resource> resources = resources_of(kernel, machine, ceilings);
    const Resource* busiest = nullptr;
    for (const Resource& resource : resources) {
      if (resource.known() && (busiest == nullptr || resource.share > busiest->share)) busiest = &resource;
    }
    const auto most_of = [&](std::initializer_list<Cause> causes) {
      double share = report::kMissing;
      bool impossible = false;
      for (const Resource& resource : resources) {
        if (std::find(causes.begin(), causes.end(), resource.cause) == causes.end()) continue;
        share = std::fmax(share, resource.share);
        impossible = impossible || resource.impossible();
      }
      return Cell{percent(share), impossible ? Colour::red : Colour::none};
    };
    const Occupancy occupancy = occupancy_of(machine, kernel.use);
    table.add({{one_line(kernel.implementation)},
               {short_number(1e6 * kernel.seconds)},
               {busiest == nullptr ? "-" : to_string(busiest->cause), Colour::bold},
               most_of({Cause::dram}),
               most_of({Cause::l2}),
               most_of({Cause::l1, Cause::shared_memory}),
               most_of({Cause::products}),
               most_of({Cause::issue_slots}),
               {fmt::format("{}", occupancy.blocks)},
               {to_string(occupancy.limit), Colour::dim},
               {percent(occupancy.warps_share)},
               {short_number(occupancy.waves)},
               {percent(occupancy.wave_yield)}});
  }
  return table;
}

nlohmann::json resources_json(const KernelCase& kernel, const Multiprocessors& machine,
                              const std::vector<report::Ceiling>& ceilings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Resource& resource : resources_of(kernel, machine, ceilings)) {
    list.push_back({{"unit", resource.name},
                    {"share", resource.share},
                    {"of", resource.of},
                    {"possible", !resource.impossible()}});
  }
  return list;
}

std::string origin_line(const report::Report& report, const std::vector<KernelCase>& kernels) {
  const bool imported =
      std::all_of(kernels.begin(), kernels.end(), [](const auto& k) { return k.profiled && !k.benched; });
  return imported ? fmt::format("{}, by a profiler's table\n", one_line(report.provenance.gpu))
                  : fmt::format("{}, commit {}\n", report.provenance.gpu, report.provenance.commit);
}

std::string impossible_lines(const std::vector<KernelCase>& kernels) {
  std::string lines;
  for (const KernelCase& kernel : kernels) {
    if (!kernel.warning.empty())
      lines += one_line(fmt::format("impossible in {}: {}", kernel.implementation, kernel.warning)) + "\n";
  }
  return lines;
}

}  // namespace splash::cli
