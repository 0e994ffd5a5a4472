#pragma once
// Parses what `ncu --csv` prints, for any kernel, into launches with their metrics. It reads the raw page
// (one row per launch, one column per metric, the units in a row of their own), the details page (one row per
// metric), and the summary (one row per metric with minimum, maximum and average of all launches).
// Rows and columns may come in any order, fields apart by commas, semicolons or tabs.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/csv_table.h"
#include "analysis/ncu_numbers.h"
#include "analysis/ncu_units.h"

namespace splash::analysis {

// A metric as printed: the unit may be scaled ("Mbyte"), and the value may hold separators ("2,048") or be
// none ("n/a"). What the separators mean follows from the whole table. least, most: only a summary has them.
struct NcuMetric {
  std::string value, unit;
  DecimalMark mark = DecimalMark::unknown;
  std::string least{}, most{};
};

// One launch, or all launches that a summary takes together.
struct NcuKernel {
  std::string name;    // "void scope::forward_kernel<__nv_bfloat16, 1>(Problem)"
  int64_t blocks = 0;  // 0 if the table does not tell
  int threads = 0;     // per block
  // One entry per unit: the details page calls both a share and a bandwidth "Memory Throughput".
  std::map<std::string, std::vector<NcuMetric>> metrics{};
  std::string process{};        // host and process id
  std::string device{}, cc{};   // of the GPU: its index and its compute capability ("9.0")
  std::optional<int64_t> id{};  // of the launch
  int64_t invocations = 1;      // more: a summary of as many launches

  std::string function() const;  // "forward_kernel"

  // The metric's value in bytes, sectors, seconds, as a share of 1, or as a plain count. Empty if the metric
  // is missing or has no value. Throws InvalidArgument if the unit does not fit the quantity, if the value is
  // no number, if it can be read as two numbers, or if the table has two values of it.
  std::optional<double> get(const std::string& metric, Quantity quantity) const;
  // The same, but empty if no unit fits.
  std::optional<double> get_if_fits(const std::string& metric, Quantity quantity) const;
  // Of a summary: the least and the largest of the launches.
  std::optional<double> least(const std::string& metric, Quantity quantity) const;
  std::optional<double> most(const std::string& metric, Quantity quantity) const;
};

struct NcuResults {
  std::vector<NcuKernel> kernels;  // by process, in order of launch
  std::string refusal;             // the first error of ncu, if it delivered no table: "ERR_NVGPUCTRPERM …"
};

// Takes UTF-8 and UTF-16, and skips what the profiler and the program printed before, between and after
// tables. Throws InvalidArgument if there is neither a table nor an error, if a row of the table is cut off,
// or if the table's numbers contradict one another.
NcuResults parse_ncu(const std::string& bytes);
NcuResults read_ncu(const std::string& path);  // also throws InvalidArgument if the file cannot be read

}  // namespace splash::analysis
