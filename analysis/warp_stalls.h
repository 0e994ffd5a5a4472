#pragma once
// Why warps wait, as a profiler sampled it.

#include <map>
#include <string>

#include "analysis/ncu_csv.h"

namespace splash::analysis {

// Shares of the cycles that warps are resident, by ncu's name of the reason ("long_scoreboard"; "selected":
// the warp issues). Of one scheduler's warps they add up to 1.
struct WarpStalls {
  std::map<std::string, double> shares{};
  bool whole = true;  // false: the table listed some reasons alone, and shares are of these

  bool empty() const { return shares.empty(); }
};

// The reasons in the launch's metrics, whichever family of them it has; empty if none. Throws what
// NcuKernel::get() throws.
WarpStalls warp_stalls(const NcuKernel& kernel);

// Writes and reads the text of the column `warp_stalls_counter`. Reading throws ReportError for other text.
constexpr const char* kStallsColumn = "warp_stalls_counter";
std::string stalls_text(const WarpStalls& stalls);
WarpStalls parse_stalls(const std::string& text);

// "warps wait for data of L1, L2 or DRAM (long scoreboard, 61.2 % of their cycles), then at barriers
// (barrier, 12 %)": up to three reasons of a tenth or more. Empty if there are none.
std::string most_stalled(const WarpStalls& stalls);

}  // namespace splash::analysis
