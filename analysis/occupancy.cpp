#include "analysis/occupancy.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "core/round.h"

namespace splash::analysis {
namespace {

constexpr int kQuarters = 4, kRegisterUnit = 256;

void require(bool holds, const char* what, int64_t value) {
  if (!holds) throw InvalidArgument(fmt::format("occupancy: {} is {}; it must be positive", what, value));
}

}  // namespace

const char* to_string(OccupancyLimit limit) {
  switch (limit) {
    case OccupancyLimit::warps:
      return "warps";
    case OccupancyLimit::blocks:
      return "blocks";
    case OccupancyLimit::registers:
      return "registers";
    case OccupancyLimit::shared_memory:
      return "shared memory";
  }
  return "";
}

Occupancy occupancy_of(const Multiprocessors& machine, const KernelUse& kernel) {
  require(machine.count > 0, "the number of multiprocessors", machine.count);
  require(machine.warps > 0, "the warps of a multiprocessor", machine.warps);
  require(machine.blocks > 0, "the blocks of a multiprocessor", machine.blocks);
  require(machine.registers > 0, "the registers of a multiprocessor", machine.registers);
  require(machine.shared_bytes > 0, "the shared memory of a multiprocessor", machine.shared_bytes);
  require(kernel.blocks > 0, "the number of blocks", kernel.blocks);
  require(kernel.threads > 0, "the threads of a block", kernel.threads);
  require(kernel.registers >= 0, "the registers of a thread", kernel.registers);
  require(kernel.shared_bytes >= 0, "the shared memory of a block", kernel.shared_bytes);

  const int64_t warps = round_up(kernel.threads, kWarp) / kWarp;
  int64_t by_registers = machine.blocks;
  if (kernel.registers > 0) {
    const int64_t of_warp = round_up(int64_t{kernel.registers} * kWarp, kRegisterUnit);
    const int64_t places = machine.registers / kQuarters / of_warp * kQuarters;
    by_registers = places / warps;
  }
  const std::array<int64_t, 4> fit{
      machine.warps / warps, machine.blocks, by_registers,
      machine.shared_bytes /
          round_up(std::max<int64_t>(kernel.shared_bytes + machine.shared_kept, 1), machine.shared_unit)};
  const auto* const least = std::min_element(fit.begin(), fit.end());

  Occupancy result;
  result.blocks = static_cast<int>(*least);
  result.limit = static_cast<OccupancyLimit>(least - fit.begin());
  if (result.blocks == 0) return result;
  result.warps_share = static_cast<double>(result.blocks * warps) / machine.warps;
  const int64_t places = int64_t{result.blocks} * machine.count;
  const int64_t begun = ceil_div(kernel.blocks, places);
  result.waves = static_cast<double>(kernel.blocks) / static_cast<double>(places);
  result.last_wave = result.waves - static_cast<double>(begun - 1);
  result.wave_yield = result.waves / static_cast<double>(begun);
  return result;
}

}  // namespace splash::analysis
