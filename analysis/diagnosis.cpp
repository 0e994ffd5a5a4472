#include "analysis/diagnosis.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace splash::analysis {
namespace {

std::string percent(double share) {
  return fmt::format("{:.3g} %", 100 * share);
}

std::string level_name(const KernelCase& kernel, Level level) {
  if (level == Level::l2) return "L2";
  if (level == Level::dram) return "DRAM";
  return kernel.unit == "float32" ? "the float32 units" : "the tensor cores";
}

Cause cause_of(Level level) {
  return level == Level::products ? Cause::products : level == Level::l2 ? Cause::l2 : Cause::dram;
}

double floor_of(const Floors& floors, Level level) {
  return level == Level::products ? floors.products : level == Level::l2 ? floors.l2 : floors.dram;
}

}  // namespace

const char* to_string(Cause cause) {
  switch (cause) {
    case Cause::products:
      return "products";
    case Cause::l2:
      return "L2";
    case Cause::dram:
      return "DRAM";
    case Cause::launches:
      return "launches";
    case Cause::parallelism:
      return "too little parallelism";
    case Cause::tail:
      return "tail";
    case Cause::inside:
      return "inside the multiprocessor";
  }
  return "";
}

Diagnosis diagnose(const KernelCase& kernel, const Multiprocessors& machine,
                   const std::vector<Ceiling>& ceilings) {
  const Floors floors = floors_of(kernel, ceilings);
  const Occupancy occupancy = occupancy_of(machine, kernel.use);
  const double busiest = floors.highest() / kernel.seconds, filled = occupancy.wave_yield;
  const std::string nearest = level_name(kernel, floors.level());
  Diagnosis result;
  const auto find = [&](Cause cause, double gain, std::string sentence) {
    result.findings.push_back({cause, std::max(1.0, gain), std::move(sentence)});
  };

  for (const Level level : {Level::products, Level::l2, Level::dram}) {
    const double share = floor_of(floors, level) / kernel.seconds;
    if (share < kBusy) {
      result.ruled_out.push_back(
          fmt::format("{} ({} of the measured ceiling)", level_name(kernel, level), percent(share)));
      continue;
    }
    find(cause_of(level), 1 / share,
         share > 1 ? fmt::format(
                         "{} is asked for {} of what it could deliver in the time: the caches above it serve "
                         "a part of what is counted",
                         level_name(kernel, level), percent(share))
                   : fmt::format(
                         "{} would need {} of the time at the measured ceiling: only less work for it helps",
                         level_name(kernel, level), percent(share)));
  }

  const double launches = launch_seconds(kernel, ceilings);
  if (const double share = launches / kernel.seconds; share >= kLaunches) {
    find(Cause::launches, 1 / (1 - std::min(share, 0.99)),
         fmt::format(
             "starting {} takes {} of the time: fuse them{}",
             kernel.launches == 1 ? std::string("the kernel") : fmt::format("{} kernels", kernel.launches),
             percent(share), kernel.replayed ? "" : ", or replay a graph"));
  } else {
    result.ruled_out.push_back(fmt::format("launches ({} of the time)", percent(share)));
  }

  // Idle places cost at most what separates the time from the busiest level.
  const double by_filling = std::min(1 / filled, 1 / busiest);
  if (filled >= kFilled) {
    result.ruled_out.push_back(fmt::format("idle places ({} filled)", percent(filled)));
  } else if (occupancy.waves <= 1) {
    find(
        Cause::parallelism, by_filling,
        fmt::format("its {} blocks fill {} of the {} places on {} multiprocessors{}", kernel.use.blocks,
                    percent(filled), int64_t{occupancy.blocks} * machine.count, machine.count,
                    by_filling < 1 / filled ? fmt::format("; with all filled, {} would bind", nearest) : ""));
  } else {
    find(Cause::tail, by_filling,
         fmt::format("{:.3g} waves of blocks: the last one fills {} of the places", occupancy.waves,
                     percent(occupancy.last_wave)));
  }

  // How busy the busiest level is where blocks are resident at all.
  const double where_resident = std::min(1.0, busiest / filled);
  if (where_resident < kBusy && launches / kernel.seconds < 1 - kLaunches) {
    find(Cause::inside, 1 / std::max(where_resident, launches / kernel.seconds),
         fmt::format(
             "where blocks are resident, {} of the ceiling of {} is used and less of the others: issue "
             "slots, shared memory or latency, which counts do not tell apart; {} of {} warps are resident "
             "(limited by {})",
             percent(where_resident), nearest, std::lround(occupancy.warps_share * machine.warps),
             machine.warps, to_string(occupancy.limit)));
  }
  if (result.findings.empty()) {
    find(cause_of(floors.level()), 1 / busiest,
         fmt::format("{} comes nearest, with {} of the measured ceiling", nearest, percent(busiest)));
  }
  std::stable_sort(result.findings.begin(), result.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.gain > b.gain; });
  // A level that is busy is the verdict: what else could be gained stays under its ceiling.
  std::stable_partition(result.findings.begin(), result.findings.end(), [](const Finding& f) {
    return f.cause == Cause::products || f.cause == Cause::l2 || f.cause == Cause::dram;
  });
  return result;
}

}  // namespace splash::analysis
