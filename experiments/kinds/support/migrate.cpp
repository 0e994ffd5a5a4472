#include "experiments/kinds/support/migrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/runner/record.h"
#include "experiments/runner/recorded.h"

namespace splash::experiments {
namespace {

using report::Column;
using report::Report;

// The kind of each experiment of the report, by the definitions that it holds.
std::map<std::string, const Kind*> kinds_of(const Report& report) {
  std::map<std::string, const Kind*> kinds;
  for (const RecordedExperiment& recorded : read_record(report.provenance.experiment_toml))
    kinds[recorded.definition.name] = &find_kind(recorded.definition.kind);
  return kinds;
}

bool set(Column& column, std::size_t row, const Value* value) {
  if (column.info.is_text) {
    const std::string text = value == nullptr ? "" : std::get<std::string>(*value);
    return std::exchange(column.texts[row], text) != text;
  }
  const double number = value == nullptr ? report::kMissing : number_of(*value);
  const double before = std::exchange(column.numbers[row], number);
  return before != number && !(std::isnan(before) && std::isnan(number));
}

void give_reason(Column& column) {
  std::string& reason = column.info.missing_reason;
  if (reason.find(kWithoutEffect) != std::string::npos) return;
  reason = reason.empty() ? kWithoutEffect : fmt::format("{}; or {}", kWithoutEffect, reason);
}

int64_t migrate_parameters(Report& report) {
  if (report.cases() == 0) return 0;
  const Column* const experiments = report.find("experiment");
  if (experiments == nullptr || !experiments->info.is_text)
    throw ReportError("there is no column 'experiment': the report does not tell what its cases are");
  const auto kinds = kinds_of(report);
  int64_t changed = 0;
  for (int64_t row = 0; row < report.cases(); ++row) {
    const auto at = static_cast<std::size_t>(row);
    const std::string& experiment = experiments->texts[at];
    const auto kind = kinds.find(experiment);
    if (kind == kinds.end())
      throw ReportError(fmt::format("/provenance holds no definition of the experiment '{}'", experiment));
    auto declared = kind->second->parameters();
    std::erase_if(declared, [&](const ParameterInfo& info) {  // older than the parameter: its default holds
      return report.find(info.name) == nullptr;
    });
    const Parameters recorded = recorded_parameters(report, row, declared, kind->second->name());
    const Parameters used = kind->second->used(with_defaults(*kind->second, recorded));
    for (const ParameterInfo& info : declared) {
      Column& column = *report.find(info.name);
      column.info.long_name = info.long_name;
      const auto value = used.find(info.name);
      changed += set(column, at, value == used.end() ? nullptr : &value->second) ? 1 : 0;
      if (value == used.end()) give_reason(column);
    }
  }
  return changed;
}

// Restores kernel names that an older reader garbled. Nsight Compute writes "unnamed>::" for an unnamed
// namespace; that reader took the '>' for the end of template arguments and kept only "64>" of a function's
// name. The function is the one that the case's declared kernel names. The rungs of wmma declare their idea
// instead, but those in unnamed namespaces are all called `attention`.
int64_t migrate_kernel_names(Report& report) {
  Column* const seen = report.find("kernel_counter");
  const Column* const declared = report.find("kernel");
  const Column* const implementations = report.find("implementation");
  if (seen == nullptr || declared == nullptr || implementations == nullptr) return 0;
  int64_t changed = 0;
  for (std::size_t row = 0; row < seen->texts.size(); ++row) {
    std::string& name = seen->texts[row];
    if (name.find_first_of("<>") == std::string::npos) continue;
    const std::string& kernel = declared->texts[row];
    name =
        implementations->texts[row].starts_with("wmma/") ? "attention" : kernel.substr(0, kernel.find(','));
    ++changed;
  }
  return changed;
}

}  // namespace

Migrated migrate(Report& report) {
  return {migrate_parameters(report), migrate_kernel_names(report)};
}

}  // namespace splash::experiments
