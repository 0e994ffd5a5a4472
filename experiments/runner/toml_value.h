#pragma once
// Values of parameters as TOML holds them. For the .cpp files that read TOML.

#include <optional>

#include "core/toml_table.h"
#include "experiments/runner/kind.h"

namespace splash::experiments {

// The value of a scalar; nothing for arrays, tables, dates and times.
inline std::optional<Value> scalar_of(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return Value(value->get());
  if (const auto* value = node.as_integer()) return Value(static_cast<int64_t>(value->get()));
  if (const auto* value = node.as_floating_point()) return Value(value->get());
  if (const auto* value = node.as_string()) return Value(value->get());
  return std::nullopt;
}

}  // namespace splash::experiments
