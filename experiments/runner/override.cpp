// Values of the command line, and what `splash run --set` changes of a definition.

#include <algorithm>

#include <fmt/format.h>

#include "experiments/runner/definition.h"
#include "experiments/runner/toml_value.h"
#include "experiments/runner/value.h"

namespace splash::experiments {
namespace {

std::vector<Value> listed_in_toml(const ParameterInfo& info, const std::string& text) {
  const auto refuse = [&]() -> InvalidArgument {
    return InvalidArgument(fmt::format(
        R"(what begins with [ is a list in TOML's notation, {0}=[1.2, 1.5] or {0}=["a", "b"], not '{1}')",
        info.name, text));
  };
  toml::table table;
  try {
    table = parse_toml("list = " + text, info.name);
  } catch (const InvalidArgument&) {
    throw refuse();
  }
  const toml::array* list = table.get("list")->as_array();
  if (table.size() != 1 || list == nullptr || list->empty()) throw refuse();
  std::vector<Value> values;
  for (const toml::node& element : *list) {
    const auto scalar = scalar_of(element);
    if (!scalar) throw refuse();
    values.push_back(checked(info, *scalar));
  }
  return values;
}

// A text with commas that is not allowed may be meant as several texts.
Value one_text(const ParameterInfo& info, const std::string& text) {
  try {
    return parsed(info, text);
  } catch (const InvalidArgument& error) {
    if (text.find(',') == std::string::npos) throw;
    throw InvalidArgument(
        fmt::format(R"({}; several texts are a list: '{}=["a", "b"]')", error.what(), info.name));
  }
}

// Whether a text survives the line that records it: without spaces, controls, quotes, or what opens a list.
bool is_plain(const std::string& text) {
  return !text.starts_with('[') && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != '"' && c != '\'' && c != '\\' && c != '\x7f';
  });
}

std::string in_quotes(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (is_plain(std::string(1, c)) || c == '[') {
      result += c;
    } else {
      result += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    }
  }
  return result + '"';
}

void set_values(Profile& profile, const std::string& name, const std::vector<Value>& values) {
  const auto is_same = [&](const Axis& axis) { return axis.name == name; };
  const auto axis = std::find_if(profile.axes.begin(), profile.axes.end(), is_same);
  if (values.size() > 1 && axis != profile.axes.end()) {
    axis->values = values;
    return;
  }
  std::erase_if(profile.axes, is_same);
  std::erase_if(profile.zip, is_same);
  profile.fixed.erase(name);
  if (values.size() > 1) {
    profile.axes.push_back({name, values});
  } else {
    profile.fixed[name] = values.front();
  }
}

// What both profiles hold a parameter at; nothing where one of them sweeps it.
std::vector<Value> held_at(const Definition& definition, const ParameterInfo& info) {
  std::vector<Value> held;
  for (const Profile* profile : {&definition.full, &definition.quick}) {
    const auto is_same = [&](const Axis& axis) { return axis.name == info.name; };
    if (std::any_of(profile->axes.begin(), profile->axes.end(), is_same) ||
        std::any_of(profile->zip.begin(), profile->zip.end(), is_same))
      return {};
    const auto fixed = profile->fixed.find(info.name);
    held.push_back(fixed == profile->fixed.end() ? info.default_value : fixed->second);
  }
  return held;
}

// What is measured for a claim is measured where the definition holds the parameter, not over a new axis.
void keep_expectations_at(Definition& definition, const std::string& name, const std::vector<Value>& held) {
  for (Expectation& expected : definition.expectations) {
    for (Measurement* measured : {&expected.measured, expected.over ? &*expected.over : nullptr}) {
      if (measured != nullptr && !measured->where.contains(name)) measured->held[name] = held;
    }
  }
}

bool is_excluded(const Filter& asked, const Filter& overrides) {
  return std::any_of(asked.begin(), asked.end(), [&](const auto& entry) {
    const auto given = overrides.find(entry.first);
    return given != overrides.end() &&
           std::none_of(given->second.begin(), given->second.end(), [&](const Value& value) {
             return std::find(entry.second.begin(), entry.second.end(), value) != entry.second.end();
           });
  });
}

bool is_excluded(const Measurement& measurement, const Filter& overrides) {
  return is_excluded(measurement.where, overrides) || is_excluded(measurement.held, overrides);
}

}  // namespace

std::vector<Value> parsed_values(const ParameterInfo& info, const std::string& text) {
  if (text.starts_with('[')) return listed_in_toml(info, text);
  if (info.type == ParameterType::text) return {one_text(info, text)};
  std::vector<Value> values;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin)
      throw InvalidArgument(fmt::format("parameter '{}' needs a value where '{}' has none", info.name, text));
    values.push_back(parsed(info, text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return values;
}

std::string values_text(const std::vector<Value>& values) {
  const auto* only = std::get_if<std::string>(&values.front());
  if (only != nullptr && values.size() == 1 && is_plain(*only)) return *only;
  std::string text;
  for (const Value& value : values) {
    text += text.empty() ? "" : ",";
    text += only != nullptr ? in_quotes(std::get<std::string>(value)) : to_text(value);
  }
  return only != nullptr ? "[" + text + "]" : text;
}

void override_parameter(Definition& definition, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0)
    throw InvalidArgument(fmt::format("--set takes parameter=value, not '{}'", assignment));
  const Kind& kind = find_kind(definition.kind);
  const std::string name = assignment.substr(0, equals);
  const auto declared = kind.parameters();
  const ParameterInfo& info = find_parameter(kind, declared, name);
  std::vector<Value> values;
  for (const Value& value : parsed_values(info, assignment.substr(equals + 1))) {
    const std::vector<Value> choices = kind.choices(name, value);
    values.insert(values.end(), choices.begin(), choices.end());
  }
  if (values.empty())
    throw InvalidArgument(fmt::format("--set {} stands for nothing in this build", assignment));
  if (const auto before = definition.overrides.find(name); before != definition.overrides.end()) {
    std::vector<Value> both = before->second;
    both.insert(both.end(), values.begin(), values.end());
    throw InvalidArgument(
        fmt::format("--set gives {0} twice, as {1} and {2}; give all its values at once: --set '{0}={3}'",
                    name, values_text(before->second), values_text(values), values_text(both)));
  }
  if (const std::vector<Value> held = held_at(definition, info); values.size() > 1 && !held.empty())
    keep_expectations_at(definition, name, held);
  set_values(definition.full, name, values);
  set_values(definition.quick, name, values);
  definition.overrides[name] = values;
  drop_excluded_expectations(definition);
}

std::vector<std::string> override_texts(const Definition& definition) {
  std::vector<std::string> texts;
  for (const auto& [name, values] : definition.overrides) texts.push_back(name + "=" + values_text(values));
  return texts;
}

void drop_excluded_expectations(Definition& definition) {
  std::erase_if(definition.expectations, [&](const Expectation& expected) {
    return is_excluded(expected.measured, definition.overrides) ||
           (expected.over && is_excluded(*expected.over, definition.overrides));
  });
}

}  // namespace splash::experiments
