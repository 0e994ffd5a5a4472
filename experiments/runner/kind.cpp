#include "experiments/runner/kind.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/suggest.h"

namespace splash::experiments {
namespace {

// Static objects of other files fill it, so it must exist before the first of them.
std::vector<const Kind*>& registry() {
  static std::vector<const Kind*> kinds;
  return kinds;
}

const Value& value_of(const Parameters& parameters, const std::string& name) {
  const auto found = parameters.find(name);
  if (found == parameters.end()) throw InvalidArgument(fmt::format("parameter '{}' is not set", name));
  return found->second;
}

template <class T>
const T& typed(const Parameters& parameters, const std::string& name, const char* type) {
  const T* value = std::get_if<T>(&value_of(parameters, name));
  if (value == nullptr) throw InvalidArgument(fmt::format("parameter '{}' is not of type {}", name, type));
  return *value;
}

}  // namespace

Parameters completed(const Kind& kind, const Parameters& parameters) {
  Parameters all = parameters;
  kind.add_from_inputs(all);
  return with_defaults(kind, std::move(all));
}

Parameters with_defaults(const Kind& kind, Parameters parameters) {
  for (const ParameterInfo& info : kind.parameters()) parameters.try_emplace(info.name, info.default_value);
  return parameters;
}

int64_t get_integer(const Parameters& parameters, const std::string& name) {
  return typed<int64_t>(parameters, name, "integer");
}

double get_number(const Parameters& parameters, const std::string& name) {
  if (const auto* integer = std::get_if<int64_t>(&value_of(parameters, name)))
    return static_cast<double>(*integer);
  return typed<double>(parameters, name, "number");
}

bool get_flag(const Parameters& parameters, const std::string& name) {
  return typed<bool>(parameters, name, "flag");
}

const std::string& get_text(const Parameters& parameters, const std::string& name) {
  return typed<std::string>(parameters, name, "text");
}

const std::vector<const Kind*>& all_kinds() {
  std::vector<const Kind*>& kinds = registry();
  std::sort(kinds.begin(), kinds.end(), [](const Kind* a, const Kind* b) { return a->name() < b->name(); });
  return kinds;
}

const Kind& find_kind(const std::string& name) {
  std::vector<std::string> names;
  for (const Kind* kind : all_kinds()) {
    if (kind->name() == name) return *kind;
    names.push_back(kind->name());
  }
  throw InvalidArgument(fmt::format("there is no kind of experiment '{}'{}", name, suggestion(name, names)));
}

KindRegistration::KindRegistration(const Kind& kind) {
  registry().push_back(&kind);
}

}  // namespace splash::experiments
