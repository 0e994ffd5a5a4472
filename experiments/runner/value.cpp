#include "experiments/runner/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "core/suggest.h"

namespace splash::experiments {
namespace {

const char* type_name(const Value& value) {
  static const char* const names[] = {"integer", "number", "flag", "text"};
  return names[value.index()];
}

template <class T>
bool parse_whole(const std::string& text, T& value) {
  const char* begin = text.data() + (text.size() > 1 && text[0] == '+' ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool is_allowed(const ParameterInfo& info, const std::string& text) {
  return info.allowed.empty() || std::ranges::find(info.allowed, text) != info.allowed.end() ||
         std::ranges::any_of(info.file_endings, [&](const std::string& end) { return text.ends_with(end); });
}

}  // namespace

const char* to_string(ParameterType type) {
  static const char* const names[] = {"integer", "number", "flag", "text"};
  return names[static_cast<int>(type)];
}

std::string to_text(const Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return std::get<std::string>(value);
}

Value checked(const ParameterInfo& info, const Value& value) {
  Value result = value;
  if (info.type == ParameterType::number && std::holds_alternative<int64_t>(value)) {
    result = static_cast<double>(std::get<int64_t>(value));
  }
  const bool fits = result.index() == static_cast<std::size_t>(info.type);
  if (!fits) {
    throw InvalidArgument(fmt::format("parameter '{}' must be a value of type {}, not the {} {}", info.name,
                                      to_string(info.type), type_name(value), to_text(value)));
  }
  if (const auto* number = std::get_if<double>(&result); number && !std::isfinite(*number)) {
    throw InvalidArgument(fmt::format("parameter '{}' must be finite, not {}", info.name, to_text(value)));
  }
  if (const auto* text = std::get_if<std::string>(&result); text && !is_allowed(info, *text)) {
    const std::string files = info.file_endings.empty() ? ""
                                                        : fmt::format(", or a file that ends with {}",
                                                                      fmt::join(info.file_endings, ", "));
    throw InvalidArgument(fmt::format("parameter '{}' cannot be \"{}\"{}{}", info.name, *text,
                                      suggestion(*text, info.allowed), files));
  }
  return result;
}

Value parsed(const ParameterInfo& info, const std::string& text) {
  Value value = text;
  int64_t integer = 0;
  double number = 0;
  switch (info.type) {
    case ParameterType::integer:
      if (parse_whole(text, integer)) value = integer;
      break;
    case ParameterType::number:
      if (parse_whole(text, number)) value = number;
      break;
    case ParameterType::flag:
      if (text == "true" || text == "false") value = text == "true";
      break;
    case ParameterType::text:
      break;
  }
  return checked(info, value);
}

const ParameterInfo& find_parameter(const Kind& kind, const std::vector<ParameterInfo>& declared,
                                    const std::string& name) {
  std::vector<std::string> names;
  for (const ParameterInfo& info : declared) {
    if (info.name == name) return info;
    names.push_back(info.name);
  }
  throw InvalidArgument(
      fmt::format("kind '{}' has no parameter '{}'{}", kind.name(), name, suggestion(name, names)));
}

}  // namespace splash::experiments
