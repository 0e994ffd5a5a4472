#pragma once
// A kind of experiment: its parameters, the columns it fills, and how one case is evaluated. Declared once;
// the TOML reader, the runner, the report, `splash list` and the docs all read this declaration. Adding a
// kind is one file in experiments/kinds, registered by being compiled (see KindRegistration).

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "report/report.h"

namespace splash::experiments {

using Value = std::variant<int64_t, double, bool, std::string>;
using Parameters = std::map<std::string, Value>;

enum class ParameterType { integer, number, flag, text };

struct ParameterInfo {
  std::string name;
  ParameterType type = ParameterType::number;
  Value default_value;  // used if a definition does not set it
  std::string units, long_name;
  std::vector<std::string> allowed;         // text only; empty: any
  std::vector<std::string> file_endings{};  // text only: also allowed are paths of files that end so
};

// What one case found. A declared column without an entry here is missing (NaN or ""); its missing_reason
// must say why.
struct CaseResult {
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<double>> vectors;  // columns with a second dimension
  std::vector<report::Attachment> attachments;         // case_id is filled in by the runner
};

class Kind {
 public:
  virtual ~Kind() = default;
  virtual std::string name() const = 0;     // kebab-case
  virtual std::string summary() const = 0;  // one line for `splash list`
  virtual std::vector<ParameterInfo> parameters() const = 0;
  virtual std::vector<report::ColumnInfo> columns() const = 0;
  // Coordinates of the columns' second dimensions, if they are more than a count.
  virtual std::vector<report::Dimension> dimensions() const { return {}; }

  // What an axis value of a definition stands for: itself, or several values. "wmma/*" is every rung of wmma.
  virtual std::vector<Value> choices(const std::string& /*parameter*/, const Value& value) const {
    return {value};
  }
  // Adds what a file of inputs says about parameters that the definition leaves open (extents, scale, mask),
  // before the rest take their defaults. Throws InvalidArgument and ReportError if the file cannot be read.
  virtual void add_from_inputs(Parameters& /*set*/) const {}
  // Whether cases need a GPU. Without one the run ends before its first case; with one the report holds the
  // GPU's ceilings.
  virtual bool needs_device() const { return false; }

  // Whether cases time this project's code on the CPU. The report then holds the CPU's ceilings, which are
  // measured before the cases are completed.
  virtual bool times_cpu() const { return false; }

  // Throws InvalidArgument if values do not fit together. Called for every case before any case runs.
  virtual void check(const Parameters& parameters) const = 0;
  // The parameters that such a case depends on, with the values that it uses: these are what a report
  // records. Parameters that the others leave without effect are absent, such as the seed when inputs are
  // read from a file.
  virtual Parameters used(const Parameters& parameters) const { return parameters; }
  // A fingerprint of the case's inputs (captured tensors, seeds); part of the case's id.
  virtual std::string input_hash(const Parameters& parameters) const = 0;
  virtual CaseResult evaluate(const Parameters& parameters) const = 0;
  // Adds to an evaluated case what needs neither a clock nor a device (counts, models). Called after all
  // cases are evaluated, for several cases at once, each on one core. Journals hold results without it.
  virtual void complete(const Parameters& /*parameters*/, CaseResult& /*result*/) const {}
};

// The given values, then what their inputs say about the others, then the kind's defaults.
Parameters completed(const Kind& kind, const Parameters& parameters);
// The same without reading inputs, which may no longer exist: for recorded cases.
Parameters with_defaults(const Kind& kind, Parameters parameters);

int64_t get_integer(const Parameters& parameters, const std::string& name);
double get_number(const Parameters& parameters, const std::string& name);  // integers too
bool get_flag(const Parameters& parameters, const std::string& name);
const std::string& get_text(const Parameters& parameters, const std::string& name);

const std::vector<const Kind*>& all_kinds();     // by name
const Kind& find_kind(const std::string& name);  // throws InvalidArgument, suggesting the nearest

struct KindRegistration {
  explicit KindRegistration(const Kind& kind);
};

}  // namespace splash::experiments
