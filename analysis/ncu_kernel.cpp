// One launch of a table of Nsight Compute: its name and its metrics.

#include <cctype>

#include <fmt/format.h>

#include "analysis/ncu_csv.h"
#include "core/error.h"

namespace splash::analysis {
namespace {

// The name without unnamed namespaces: "(anonymous namespace)::", "<unnamed>::", or "unnamed>::" where ncu
// cut it. In "kernel<unnamed>::Type>" the '<' opens the kernel's template arguments, and stays.
std::string without_unnamed(std::string name) {
  for (const std::string scope : {"(anonymous namespace)::", "unnamed>::"}) {
    for (std::size_t at = 0; (at = name.find(scope)) != std::string::npos;) {
      name.erase(at, scope.size());
      const bool opened = scope.front() == 'u' && at > 0 && name[at - 1] == '<';
      const bool of_template =
          opened && at > 1 &&
          (std::isalnum(static_cast<unsigned char>(name[at - 2])) != 0 || name[at - 2] == '_');
      if (opened && !of_template) name.erase(at - 1, 1);
    }
  }
  return name;
}

// The value, or end of a summary, whose unit fits the quantity.
std::optional<double> value_of(const NcuKernel& kernel, const std::string& name, Quantity quantity,
                               std::string NcuMetric::*text) {
  const auto found = kernel.metrics.find(name);
  if (found == kernel.metrics.end()) return std::nullopt;
  std::optional<double> value;
  const NcuMetric* first = nullptr;
  for (const NcuMetric& metric : found->second) {
    const auto factor = factor_of(metric.unit, quantity);
    if (is_missing(metric.*text) || !factor) continue;
    const auto number = number_from(metric.*text, metric.mark);
    if (!number)
      throw InvalidArgument(fmt::format("the value '{}' of the metric {} is no number", metric.*text, name));
    if (value && *value != *number * *factor) {
      throw InvalidArgument(
          fmt::format("the table has two values of the metric {} for one launch of {}, '{} {}' and '{} {}'; "
                      "several launches "
                      "need the column ID",
                      name, kernel.function(), first->*text, first->unit, metric.*text, metric.unit));
    }
    value = *number * *factor;
    first = &metric;
  }
  return value;
}

}  // namespace

std::string NcuKernel::function() const {
  // Keeps the name up to the parameters, without template arguments, scopes and the type of the result.
  const std::string whole = without_unnamed(name);
  std::string text;
  int depth = 0;
  for (const char c : whole) {
    if (c == '<') ++depth;
    if (depth == 0 && c == '(') break;
    if (depth == 0) text += c;
    if (c == '>') --depth;
  }
  const std::size_t scope = text.find_last_of(": ");
  return scope == std::string::npos ? text : text.substr(scope + 1);
}

std::optional<double> NcuKernel::get(const std::string& metric, Quantity quantity) const {
  if (const auto value = value_of(*this, metric, quantity, &NcuMetric::value)) return value;
  const auto found = metrics.find(metric);
  if (found == metrics.end()) return std::nullopt;
  for (const NcuMetric& entry : found->second) {
    if (is_missing(entry.value) || factor_of(entry.unit, quantity)) continue;
    throw InvalidArgument(fmt::format("the metric {} comes in the unit '{}', which is none of {}", metric,
                                      entry.unit, units_of(quantity)));
  }
  return std::nullopt;
}

std::optional<double> NcuKernel::get_if_fits(const std::string& metric, Quantity quantity) const {
  return value_of(*this, metric, quantity, &NcuMetric::value);
}

std::optional<double> NcuKernel::least(const std::string& metric, Quantity quantity) const {
  return value_of(*this, metric, quantity, &NcuMetric::least);
}

std::optional<double> NcuKernel::most(const std::string& metric, Quantity quantity) const {
  return value_of(*this, metric, quantity, &NcuMetric::most);
}

}  // namespace splash::analysis
