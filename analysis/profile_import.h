#pragma once
// Makes a report of a profiler's table: one case per kernel, grid, block and process, of all its launches.

#include <optional>
#include <string>
#include <vector>

#include "analysis/counters.h"
#include "analysis/machine.h"
#include "analysis/warp_stalls.h"

namespace splash::analysis {

// One kernel with one grid and block in one process.
struct ProfiledCase {
  std::string name;            // as the profiler prints it, with types and arguments
  std::string implementation;  // "saxpy"; with template arguments where another case has the same function
  std::string process, device, cc;
  KernelUse use{};
  int64_t launches = 0;           // that the table tells of
  std::vector<double> seconds{};  // of each launch that has a time; of a summary only the average
  double least = report::kMissing, most = report::kMissing;  // seconds of a launch
  Counters counters{};  // the median of the launches; of a summary the average
  double flops = report::kMissing, dram_bytes = report::kMissing;
  std::string unit = "float32";  // dtype of the products' ceiling
  WarpStalls stalls{};           // of the launch that tells most
  std::string warning{};         // what cannot be, as impossible() says
};

// Throws InvalidArgument if a launch's grid or block is not told, if no launch has a time, or what
// NcuKernel::get() throws.
std::vector<ProfiledCase> profiled_cases(const std::vector<NcuKernel>& kernels);

// The GPU that a table is of. Without a machine its name or compute capability alone is known.
struct ProfiledGpu {
  std::string name;
  std::optional<Machine> machine{};
  std::optional<Multiprocessors> multiprocessors{};
  int compute_capability = 0;  // 90 is 9.0; 0: not known
};

// `asked`: the name as the driver gives it, or "" to take that in the table
// (device__attribute_display_name). Throws InvalidArgument if the table is of several kinds of GPU, if its
// compute capability is not that of the asked GPU, or if neither name nor number of multiprocessors is known.
ProfiledGpu gpu_of(const std::vector<NcuKernel>& kernels, const std::vector<ProfiledCase>& cases,
                   const std::string& asked, const std::vector<Machine>& machines);

// The data sheet's figures as ceilings that were not measured; those that are not known are there as NaN.
std::vector<report::Ceiling> datasheet_ceilings(const ProfiledGpu& gpu);

// Writes all columns of the cases. The caller adds provenance and title.
report::Report profiled_report(const std::vector<ProfiledCase>& cases, const ProfiledGpu& gpu,
                               std::vector<report::Ceiling> ceilings);

}  // namespace splash::analysis
