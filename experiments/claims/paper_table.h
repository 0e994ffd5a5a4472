#pragma once
// Published tables beside what recorded reports hold of the same: theirs, ours, and a ratio where both sides
// measured the same problem. The format of data/papers/*.toml, a file per paper:
//
//   paper = "AdaSplash-2 (arXiv 2604.15180)"
//   [[table]]
//   name = "adasplash2-lengths"
//   title = "forward + backward by length"
//   place = "figure 1, page 2"      # where the numbers stand, and how they were read
//   gpu = "H100"                    # part of the driver's name; without it the paper does not state it
//   unit = "ms"
//   column = "time_median"          # of our reports
//   experiment = "adasplash2-lengths"
//   reports = ["papers-h200.h5"]    # of data/reports
//   by = "implementation"           # the parameter that a series' `ours` names; this one without it
//   over = "FlashAttention-2"       # a series: the others also tell how many times as fast as it they are
//   stated = { mask = "causal" }    # what the paper says of every row, by the names of our parameters
//   not_stated = ["batch"]          # what it does not say, and should
//   rows = { q_len = [4096, 8192], block_sparsity_64 = [0.51, 0.58] }   # of each row, a list a name
//   ours = { batch = 1, kv_len = [4096, 8192] }   # what else chooses our cases: a value, or one a row
//   [[table.series]]
//   name = "AdaSplash-2"
//   values = [3.3, nan]             # nan: the paper has none there
//   ours = ["torch-adasplash2"]     # our implementations of the same; none: `why` says why not
//   differs = "cuDNN, not FlashAttention-3"   # what no parameter tells

#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "report/report.h"

namespace splash::experiments {

struct PaperSeries {
  std::string name, differs, why;
  std::vector<double> values;  // one a row, in the table's unit; NaN where the paper has none
  std::vector<std::string> ours;
};

struct PaperTable {
  std::string paper, name, title, place, gpu, unit, column, experiment, by, over;
  double scale = 1;  // one `unit` in the column's own
  std::vector<std::string> reports, not_stated;
  Parameters stated;
  std::vector<Axis> rows, ours;  // lists of equal length
  std::vector<PaperSeries> series;
};

// Throws InvalidArgument with file and line, also if a name is used twice.
std::vector<PaperTable> read_paper_tables(const std::string& folder);
std::vector<PaperTable> parse_paper_tables(const std::string& toml, const std::string& file);

// One number of the paper beside one of ours.
struct PaperLine {
  std::size_t row = 0;
  std::string theirs_name, ours_name;  // what was measured; ours "" where `why` says why nothing is
  std::string unit;                    // the table's, or "x": times as fast as the series `over`
  double theirs = report::kMissing, ours = report::kMissing;  // ours missing: not measured
  std::string why;
  // In words, "other GPU (NVIDIA H200); problem not fully stated". Empty: the same problem, and ours / theirs
  // is a ratio. A quotient of two times of one GPU is compared with one of another GPU; a time is not.
  // Results such as a share of empty tiles are the same within 5 %.
  std::string differs;
};

// Lines by row, then by series. Of several cases that fit, the one nearest to the paper's problem counts.
std::vector<PaperLine> compare_with_paper(const PaperTable& table,
                                          const std::vector<report::Report>& reports);

// What `splash run EXPERIMENT --set …` takes to measure a row: "q_len=4096". `definition`: of the table's
// experiment; what it fixes already is left out, and what its kind does not know.
std::vector<std::string> settings_of_row(const PaperTable& table, std::size_t row,
                                         const Definition& definition);

}  // namespace splash::experiments
