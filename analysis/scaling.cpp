#include "analysis/scaling.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

namespace splash::analysis {
namespace {

constexpr double kApartFactor = 1.1;  // ratios of resident blocks, or of times, below this tell nothing

// Single calls and graphs run the same kernel. They differ in the cost of launches, which is subtracted.
std::string without_method(std::string setting) {
  constexpr std::string_view kGraph = ", graph";
  if (const auto at = setting.find(kGraph); at != std::string::npos) setting.erase(at, kGraph.size());
  return setting;
}

bool differs_in_blocks_alone(const KernelCase& a, const KernelCase& b) {
  return a.implementation == b.implementation && without_method(a.setting) == without_method(b.setting) &&
         a.unit == b.unit && a.shape.group() == b.shape.group() && a.kernel == b.kernel &&
         a.use.threads == b.use.threads && a.use.shared_bytes == b.use.shared_bytes && a.tile_q == b.tile_q &&
         a.tile_k == b.tile_k && a.use.blocks != b.use.blocks;
}

bool of_equal_lengths(const KernelCase& a, const KernelCase& b) {
  return a.shape.q_len == b.shape.q_len && a.shape.kv_len == b.shape.kv_len;
}

double behind_launch(const KernelCase& kernel, const std::vector<report::Ceiling>& ceilings) {
  return seconds_behind_launch(kernel, launch_seconds(kernel, ceilings));
}

// A full or partly filled wave: its seconds per FLOP of one block, and the number of blocks on each
// multiprocessor that has any.
struct Wave {
  double seconds = 0, blocks = 1;
};

Wave wave_of(const KernelCase& kernel, const Multiprocessors& machine,
             const std::vector<report::Ceiling>& ceilings) {
  const Occupancy occupancy = occupancy_of(machine, kernel.use);
  const auto blocks = static_cast<double>(kernel.use.blocks);
  return {.seconds = behind_launch(kernel, ceilings) / std::max(1.0, occupancy.waves) * blocks / kernel.flops,
          .blocks =
              std::clamp(blocks / machine.count, 1.0, std::max(1.0, static_cast<double>(occupancy.blocks)))};
}

Scaling compared(const KernelCase& kernel, const KernelCase& other, double blocks,
                 const Multiprocessors& machine, const std::vector<report::Ceiling>& ceilings) {
  Scaling scaling;
  scaling.case_id = other.case_id;
  scaling.blocks = blocks;
  scaling.rate =
      other.flops / kernel.flops * behind_launch(kernel, ceilings) / behind_launch(other, ceilings);
  const Wave here = wave_of(kernel, machine, ceilings), there = wave_of(other, machine, ceilings);
  if (std::max(there.blocks / here.blocks, here.blocks / there.blocks) > kApartFactor) {
    const double grows = (there.seconds - here.seconds) / (there.blocks - here.blocks);
    scaling.busy = std::clamp(grows * here.blocks / here.seconds, 0.0, 1.0);
  }
  return scaling;
}

bool neighbours_in_blocks_held(const KernelCase& a, const KernelCase& b) {
  return a.kernel == b.kernel && !a.kernel.empty() && a.problem == b.problem && a.unit == b.unit &&
         a.launches == 1 && b.launches == 1 && a.use.threads == b.use.threads &&
         are_neighbouring_rungs(a, b) && std::abs(b.flops / a.flops - 1) < kApartFactor - 1;
}

std::vector<std::string> parts_of(const std::string& setting) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= setting.size();) {
    const std::size_t end = std::min(setting.find(", ", begin), setting.size());
    parts.push_back(setting.substr(begin, end - begin));
    begin = end + 2;
  }
  return parts;
}

std::optional<Clue> clue_of(const KernelCase& kernel, const KernelCase& other) {
  if (other.implementation != kernel.implementation || !(other.shape == kernel.shape)) return std::nullopt;
  const std::vector<std::string> here = parts_of(kernel.setting), there = parts_of(other.setting);
  if (here.size() != there.size()) return std::nullopt;
  const auto changed = std::mismatch(here.begin(), here.end(), there.begin());
  if (changed.first == here.end() || !std::equal(changed.first + 1, here.end(), changed.second + 1))
    return std::nullopt;
  return Clue{other.case_id, fmt::format("{} instead of {}", *changed.second, *changed.first),
              other.seconds / kernel.seconds};
}

}  // namespace

std::optional<Scaling> scaling_of(const KernelCase& kernel, const std::vector<KernelCase>& others,
                                  const Multiprocessors& machine,
                                  const std::vector<report::Ceiling>& ceilings) {
  const KernelCase* best = nullptr;
  const auto rank = [&](const KernelCase& other) {
    return std::tuple(
        of_equal_lengths(kernel, other), other.replayed == kernel.replayed,
        other.use.blocks > kernel.use.blocks,
        std::abs(std::log(static_cast<double>(other.use.blocks) / static_cast<double>(kernel.use.blocks))));
  };
  for (const KernelCase& other : others) {
    if (kernel.profiled && !(kernel.flops > 0 && other.flops > 0)) continue;  // no work to compare
    if (differs_in_blocks_alone(kernel, other) && (best == nullptr || rank(other) > rank(*best)))
      best = &other;
  }
  if (best == nullptr) return std::nullopt;
  return compared(kernel, *best,
                  static_cast<double>(best->use.blocks) / static_cast<double>(kernel.use.blocks), machine,
                  ceilings);
}

std::optional<Scaling> residency_of(const KernelCase& kernel, const std::vector<KernelCase>& others,
                                    const Multiprocessors& machine,
                                    const std::vector<report::Ceiling>& ceilings) {
  const auto resident = [&](const KernelCase& k) { return std::max(1, occupancy_of(machine, k.use).blocks); };
  for (const KernelCase& other : others) {
    if (neighbours_in_blocks_held(kernel, other) && resident(other) != resident(kernel)) {
      return compared(kernel, other, static_cast<double>(resident(other)) / resident(kernel), machine,
                      ceilings);
    }
  }
  return std::nullopt;
}

std::vector<Clue> clues_of(const KernelCase& kernel, const std::vector<KernelCase>& others) {
  std::vector<Clue> clues;
  for (const KernelCase& other : others) {
    const std::optional<Clue> clue = clue_of(kernel, other);
    if (clue && std::max(clue->time, 1 / clue->time) >= kApartFactor) clues.push_back(*clue);
  }
  const auto distance = [](const Clue& clue) { return std::abs(std::log(clue.time)); };
  std::stable_sort(clues.begin(), clues.end(),
                   [&](const Clue& a, const Clue& b) { return distance(a) > distance(b); });
  std::vector<Clue> first;
  for (const Clue& clue : clues) {
    if (std::none_of(first.begin(), first.end(), [&](const Clue& f) { return f.words == clue.words; }))
      first.push_back(clue);
  }
  return first;
}

}  // namespace splash::analysis
