#include "analysis/warp_stalls.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace splash::analysis {
namespace {

// A family of metrics, one per reason: its name is `before` + reason + `after`.
struct Family {
  const char* before;
  const char* after;
  const char* all;  // metric of their sum, if there is one
  const char* all_label;
};

constexpr std::array kFamilies{
    Family{"smsp__average_warps_issue_stalled_", "_per_issue_active.ratio",
           "smsp__average_warp_latency_per_inst_issued.ratio", "Warp Cycles Per Issued Instruction"},
    Family{"smsp__average_warp_latency_issue_stalled_", ".ratio",
           "smsp__average_warp_latency_per_inst_issued.ratio", "Warp Cycles Per Issued Instruction"},
    Family{"smsp__pcsamp_warps_issue_stalled_", "", "", ""},
};
constexpr std::size_t kReasons = 10;  // so many and more are all that matter

// NVIDIA, Nsight Compute documentation, Kernel Profiling Guide: Warp Stall Reasons.
constexpr std::pair<const char*, const char*> kWords[] = {
    {"long_scoreboard", "for data of L1, L2 or DRAM"},
    {"short_scoreboard", "for data of shared memory or for special functions"},
    {"barrier", "at barriers of their block"},
    {"mio_throttle", "for a full queue of shared memory and special functions"},
    {"lg_throttle", "for a full queue of loads and stores"},
    {"tex_throttle", "for a full queue of textures"},
    {"math_pipe_throttle", "for busy arithmetic units"},
    {"not_selected", "for their turn: others are ready too"},
    {"wait", "for the fixed latency of instructions"},
    {"no_instruction", "for instructions to be fetched"},
    {"no_instructions", "for instructions to be fetched"},
    {"imc_miss", "for constants"},
    {"membar", "at memory barriers"},
    {"drain", "for their last stores"},
    {"branch_resolve", "for branches"},
    {"branch_resolving", "for branches"},
    {"dispatch_stall", "for the dispatcher"},
    {"dispatch", "for the dispatcher"},
    {"sleeping", "asleep"},
    {"gmma", "for matrix products of their warpgroup"},
    {"warpgroup_arrive", "for the other warps of their warpgroup"},
    {"selected", "for nothing: they issue"},
};

std::string spaced(std::string reason) {
  std::replace(reason.begin(), reason.end(), '_', ' ');
  return reason;
}

}  // namespace

WarpStalls warp_stalls(const NcuKernel& kernel) {
  for (const Family& family : kFamilies) {
    const std::string before = family.before, after = family.after;
    WarpStalls stalls;
    double sum = 0;
    for (auto entry = kernel.metrics.lower_bound(before);
         entry != kernel.metrics.end() && entry->first.starts_with(before); ++entry) {
      const std::string& name = entry->first;
      if (!name.ends_with(after) || name.ends_with("_not_issued")) continue;
      const auto value = kernel.get(name, Quantity::count);
      if (!value || !(*value >= 0)) continue;
      stalls.shares[name.substr(before.size(), name.size() - before.size() - after.size())] = *value;
      sum += *value;
    }
    if (stalls.empty() || !(sum > 0)) continue;
    const auto all = kernel.get(family.all, Quantity::count);
    const double total =
        std::max(sum, (all ? all : kernel.get(family.all_label, Quantity::count)).value_or(0));
    stalls.whole = total > sum || stalls.shares.size() >= kReasons;
    for (auto& [reason, share] : stalls.shares) share /= total;
    return stalls;
  }
  return {};
}

std::string stalls_text(const WarpStalls& stalls) {
  if (stalls.empty()) return "";
  return nlohmann::json{{"whole", stalls.whole}, {"shares", stalls.shares}}.dump();
}

WarpStalls parse_stalls(const std::string& text) {
  WarpStalls stalls;
  if (text.empty()) return stalls;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  try {
    stalls.whole = json.at("whole").get<bool>();
    stalls.shares = json.at("shares").get<std::map<std::string, double>>();
  } catch (const nlohmann::json::exception&) {
    throw ReportError(fmt::format("the column '{}' does not hold reasons and their shares", kStallsColumn));
  }
  return stalls;
}

std::string most_stalled(const WarpStalls& stalls) {
  constexpr double kWorthNaming = 0.1;
  constexpr std::size_t kNamed = 3;
  std::vector<std::pair<std::string, double>> reasons;
  for (const auto& [reason, share] : stalls.shares) {
    if (reason != "selected" && share >= kWorthNaming) reasons.emplace_back(reason, share);
  }
  std::stable_sort(reasons.begin(), reasons.end(), [](auto& a, auto& b) { return a.second > b.second; });
  if (reasons.size() > kNamed) reasons.resize(kNamed);
  std::vector<std::string> clauses;
  for (const auto& [reason, share] : reasons) {
    const auto* const known = std::find_if(std::begin(kWords), std::end(kWords),
                                           [&name = reason](const auto& word) { return name == word.first; });
    const std::string in = known == std::end(kWords) ? "" : fmt::format("{} ", known->second);
    const char* const of = !clauses.empty() ? ""
                           : stalls.whole   ? " of their cycles"
                                            : " of the waits in the table";
    clauses.push_back(fmt::format("{}({}, {:.3g} %{})", in, spaced(reason), 100 * share, of));
  }
  return clauses.empty() ? "" : fmt::format("warps wait {}", fmt::join(clauses, ", then "));
}

}  // namespace splash::analysis
