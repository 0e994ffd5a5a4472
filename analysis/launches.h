#pragma once
// The kernels of a call that starts several: what each asks of the device, and how long each takes.

#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

// As a report's text column holds them (kLaunchesColumn); throws ReportError where the text is not that.
std::string launches_text(const std::vector<Launch>& launches);
std::vector<Launch> parse_launches(const std::string& text);

// The seconds of each kernel of a call that a profiler saw, in order of launch (kLaunchSecondsColumn).
std::string launch_seconds_text(const std::vector<double>& seconds);
std::vector<double> parse_launch_seconds(const std::string& text);

constexpr const char* kLaunchesColumn = "all_launches";
constexpr const char* kLaunchSecondsColumn = "launch_seconds_counter";
report::ColumnInfo launches_column();
report::ColumnInfo launch_seconds_column();

// Gives each launch its part of the case's time, behind what starting them takes: in proportion to the times
// that a profiler saw, where it saw them all; else estimated, in proportion to the floors of what each asks,
// divided by the part of the multiprocessors that have work and by the share of warps that are resident
// there. `kernel` and `use` are then of the launch that takes longest. Does nothing where a case holds no
// launches.
void speak_of_longest(KernelCase& kernel, const Multiprocessors& machine,
                      const std::vector<report::Ceiling>& ceilings);

// The same cases, of which each speaks of its longest launch; those of a report: kernel_cases().
std::vector<KernelCase> described(std::vector<KernelCase> kernels, const Multiprocessors& machine,
                                  const std::vector<report::Ceiling>& ceilings);
std::vector<KernelCase> described_kernels(const report::Report& report, const Multiprocessors& machine);

// The launch that a case speaks of; null where it holds no launches.
const Launch* spoken_of(const KernelCase& kernel);

// Of the time of all multiprocessors the part in which they have work: less than a wave leaves some without
// any, or with fewer blocks than others.
double busy_share(const KernelUse& use, const Multiprocessors& machine);

}  // namespace splash::analysis
