#pragma once
// A report in memory: the results of one run. report/io.h writes it to HDF5 and reads it back
// (docs/report-format.md).

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace splash::report {

// Describes a column. Every dataset of a report carries these as attributes.
struct ColumnInfo {
  std::string name;       // snake_case, the dataset's name
  std::string units;      // UDUNITS-like: "1", "s", "bytes", "FLOP"
  std::string long_name;  // one plain sentence
  std::string formula;    // how it is computed, in words or symbols
  bool is_text = false;
  bool is_parameter = false;     // set by the experiment; otherwise a result
  bool reproducible = true;      // false for what differs from run to run: time, memory
  std::string missing_reason{};  // why an entry may be NaN or ""; empty if none may be missing
  std::string dimension{};       // "": one value per case; else the second dimension: column(case, dimension)
};

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();  // a missing number

// One column along the `case` dimension. A missing entry is kMissing or "".
struct Column {
  ColumnInfo info;
  std::vector<double> numbers{};     // [cases] or, with a dimension, [cases, width]
  std::vector<std::string> texts{};  // [cases], if is_text
  int64_t width = 1;                 // extent of the second dimension; shorter cases are padded with NaN
};

// Coordinates of a second dimension, for example the probabilities of `quantile`. A dimension without such a
// description counts 0, 1, 2, ...
struct Dimension {
  std::string name, units, long_name;
  std::vector<double> values;
};

// A stand-alone array of one case, for example one head's attention map: /attachments/<case_id>/<name>.
struct Attachment {
  std::string case_id, name, units, long_name, formula;
  std::vector<std::string> dimensions;  // names, outermost first
  std::vector<int64_t> extents;
  std::vector<double> numbers{};                             // row-major
  std::map<std::string, std::vector<std::string>> labels{};  // text coordinates by dimension, such as tokens
};

// unsure: part of the measurement's interval bears the claim out, and part does not.
enum class Verdict { reproduced, refuted, unsure, not_comparable };
const char* to_string(Verdict verdict);         // "reproduced", "refuted", "unsure", "not comparable"
Verdict verdict_from(const std::string& text);  // the inverse; throws ReportError

// One claim of a source document or paper, judged. Missing numbers: NaN.
struct ClaimResult {
  std::string id, source, claim, units;
  std::string theirs;  // as the source writes it, for example "99.6 %" or "< 1e-4"
  double theirs_value = 0, ours = 0, ours_low = 0, ours_high = 0, tolerance = 0;
  Verdict verdict = Verdict::not_comparable;
  std::string reason;  // one sentence
  std::string method;  // "arithmetic", "cpu", "gpu"
};

struct Provenance {
  std::string commit, argv, experiment_toml, host, cpu, gpu, driver, clocks, toolchain, input_hashes, started,
      finished;
  bool dirty = false;
  int64_t seed = 0, threads = 0;
  // Of the GPU that kernels ran on; 0: not recorded. Compute capability 9.0 is 90, as in data/machines.
  int64_t compute_capability = 0, multiprocessors = 0, l2_bytes = 0;
};

// A measured ceiling of the machine, for example DRAM copy bandwidth.
struct Ceiling {
  std::string name, dtype, units, method;
  double measured = 0, low = 0, high = 0, datasheet = 0;  // datasheet is NaN if none is known
};

struct Report {
  std::string title, run_id, history;
  std::string status = "complete";  // or partial (a shard, or only judged cases), interrupted
  Provenance provenance;
  std::vector<Ceiling> ceilings;
  std::vector<Column> results;        // of one length; include the texts `experiment` and `case_id`
  std::vector<Dimension> dimensions;  // of `results`, if they are more than a count
  std::vector<Attachment> attachments;
  std::vector<ClaimResult> claims;

  int64_t cases() const;
  const Column* find(const std::string& name) const;  // nullptr if there is none
  Column* find(const std::string& name) { return const_cast<Column*>(std::as_const(*this).find(name)); }
};

// The column of that name, with one value per case. If there is none it is added with every value missing.
// Throws ReportError if a column of that name holds something else.
Column& column_of(Report& report, const ColumnInfo& info);

constexpr int kSchemaVersion = 1;

}  // namespace splash::report
