#pragma once
// Calls of several kernels: the work, the launch configuration and the time of each kernel.

#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

// Writes and reads the text of a report's column kLaunchesColumn. Reading throws ReportError for any other
// text.
std::string launches_text(const std::vector<Launch>& launches);
std::vector<Launch> parse_launches(const std::string& text);

// The same for kLaunchSecondsColumn: the seconds of each kernel of a call as a profiler saw them, in order of
// launch.
std::string launch_seconds_text(const std::vector<double>& seconds);
std::vector<double> parse_launch_seconds(const std::string& text);

constexpr const char* kLaunchesColumn = "all_launches";
constexpr const char* kLaunchSecondsColumn = "launch_seconds_counter";
report::ColumnInfo launches_column();
report::ColumnInfo launch_seconds_column();

// Divides the case's time, less the cost of starting kernels, among its launches, and sets `kernel` and `use`
// to those of the longest launch. If a profiler saw every launch, the division follows its times. Otherwise
// it is an estimate: in proportion to the floors of each launch's work, divided by the share of
// multiprocessors that have work and by the share of warps that are resident there. A case without launches
// does not change.
void describe_longest(KernelCase& kernel, const Multiprocessors& machine,
                      const std::vector<report::Ceiling>& ceilings);

// The cases after describe_longest(): those given, or those of the report (kernel_cases()).
std::vector<KernelCase> described_kernels(std::vector<KernelCase> kernels, const Multiprocessors& machine,
                                          const std::vector<report::Ceiling>& ceilings);
std::vector<KernelCase> described_kernels(const report::Report& report, const Multiprocessors& machine);

// The launch that `kernel` and `use` describe; null if the case holds no launches.
const Launch* longest_launch(const KernelCase& kernel);

// The share of all multiprocessors' time in which they have work. With less than a wave of blocks, some
// multiprocessors have none, or fewer than others.
double busy_share(const KernelUse& use, const Multiprocessors& machine);

}  // namespace splash::analysis
