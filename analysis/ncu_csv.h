#pragma once
// What `ncu --csv` prints, as kernels with their metrics. Both forms are read: --page raw (a row a kernel, a
// column a metric, the units in the row below the header) and the details page (a row a metric).

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/ncu_numbers.h"

namespace splash::analysis {

// As printed: the unit is scaled ("Mbyte"), the value may hold separators ("2,048") or none ("n/a"). What the
// separators mean is the whole table's to tell.
struct NcuMetric {
  std::string value, unit;
  DecimalMark mark = DecimalMark::unknown;
};

enum class Quantity { bytes, sectors, seconds, share, count };

struct NcuKernel {
  std::string name;    // "void scope::forward_kernel<__nv_bfloat16, 1>(Problem)"
  int64_t blocks = 0;  // 0 where the table does not tell
  int threads = 0;     // a block
  std::map<std::string, NcuMetric> metrics;

  std::string function() const;  // "forward_kernel"

  // In bytes, sectors, seconds, as a share of 1, or as a plain count; none where the metric is missing or has
  // no value. Throws InvalidArgument for a unit that the quantity does not come in, for a value that is no
  // number, and for one that can be two.
  std::optional<double> get(const std::string& metric, Quantity quantity) const;
};

struct NcuResults {
  std::vector<NcuKernel> kernels;  // in order of launch
  std::string refusal;  // the first error of ncu, where it delivers no table: "ERR_NVGPUCTRPERM …"
};

// What the profiler and the program said before and after the table is skipped. Throws InvalidArgument where
// there is neither a table nor an error, and where the table's numbers contradict one another.
NcuResults parse_ncu(const std::string& text);
NcuResults read_ncu(const std::string& path);  // throws InvalidArgument also where the file cannot be read

// Rows of fields: commas, newlines and doubled quotes may stand inside quotes.
std::vector<std::vector<std::string>> parse_csv(const std::string& text);

}  // namespace splash::analysis
