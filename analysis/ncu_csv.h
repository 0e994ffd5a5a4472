#pragma once
// Parses what `ncu --csv` prints into kernels with their metrics. It reads both forms: --page raw (one row
// per kernel, one column per metric, the units in the row below the header) and the details page (one row per
// metric).

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/ncu_numbers.h"

namespace splash::analysis {

// A metric as printed: the unit may be scaled ("Mbyte"), and the value may hold separators ("2,048") or be
// none ("n/a"). What the separators mean follows from the whole table.
struct NcuMetric {
  std::string value, unit;
  DecimalMark mark = DecimalMark::unknown;
};

enum class Quantity { bytes, sectors, seconds, share, count };

struct NcuKernel {
  std::string name;    // "void scope::forward_kernel<__nv_bfloat16, 1>(Problem)"
  int64_t blocks = 0;  // 0 if the table does not tell
  int threads = 0;     // per block
  std::map<std::string, NcuMetric> metrics;

  std::string function() const;  // "forward_kernel"

  // The metric's value in bytes, sectors, seconds, as a share of 1, or as a plain count. Empty if the metric
  // is missing or has no value. Throws InvalidArgument if the unit does not fit the quantity, if the value is
  // no number, or if it can be read as two numbers.
  std::optional<double> get(const std::string& metric, Quantity quantity) const;
};

struct NcuResults {
  std::vector<NcuKernel> kernels;  // in order of launch
  std::string refusal;             // the first error of ncu, if it delivered no table: "ERR_NVGPUCTRPERM …"
};

// Skips what the profiler and the program printed before and after the table. Throws InvalidArgument if there
// is neither a table nor an error, or if the table's numbers contradict one another.
NcuResults parse_ncu(const std::string& text);
NcuResults read_ncu(const std::string& path);  // also throws InvalidArgument if the file cannot be read

// Splits text into rows of fields. Quoted fields may hold commas, newlines and doubled quotes.
std::vector<std::vector<std::string>> parse_csv(const std::string& text);

}  // namespace splash::analysis
