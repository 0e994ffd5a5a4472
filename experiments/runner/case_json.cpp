#include "experiments/runner/case_json.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

namespace splash::experiments {
namespace {

using nlohmann::json;

double number_from(const json& value) {
  if (!value.is_string()) return value.get<double>();
  const std::string& name = value.get_ref<const std::string&>();
  const double infinity = std::numeric_limits<double>::infinity();
  return name == "inf" ? infinity : name == "-inf" ? -infinity : std::numeric_limits<double>::quiet_NaN();
}

json numbers_to_json(const std::vector<double>& values) {
  json result = json::array();
  for (const double value : values) result.push_back(exact_number(value));
  return result;
}

std::vector<double> numbers_from(const json& values) {
  std::vector<double> result;
  result.reserve(values.size());
  for (const json& value : values) result.push_back(number_from(value));
  return result;
}

}  // namespace

json exact_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;  // written with the fewest digits that read back to the same double
}

json plain_number(double value) {
  return std::isfinite(value) ? json(value) : json(nullptr);
}

json to_json(const Value& value) {
  return std::visit([](const auto& held) { return json(held); }, value);
}

json to_json(const CaseResult& result) {
  json numbers = json::object(), vectors = json::object(), attachments = json::array();
  for (const auto& [name, value] : result.numbers) numbers[name] = exact_number(value);
  for (const auto& [name, values] : result.vectors) vectors[name] = numbers_to_json(values);
  for (const report::Attachment& a : result.attachments) {
    attachments.push_back({{"name", a.name},
                           {"units", a.units},
                           {"long_name", a.long_name},
                           {"formula", a.formula},
                           {"dimensions", a.dimensions},
                           {"extents", a.extents},
                           {"numbers", numbers_to_json(a.numbers)},
                           {"labels", a.labels}});
  }
  return {{"numbers", std::move(numbers)},
          {"texts", result.texts},
          {"vectors", std::move(vectors)},
          {"attachments", std::move(attachments)}};
}

CaseResult case_result_from_json(const json& source) {
  CaseResult result;
  for (const auto& [name, value] : source.at("numbers").items()) result.numbers[name] = number_from(value);
  source.at("texts").get_to(result.texts);
  for (const auto& [name, values] : source.at("vectors").items()) result.vectors[name] = numbers_from(values);
  for (const json& item : source.at("attachments")) {
    report::Attachment attachment;
    item.at("name").get_to(attachment.name);
    item.at("units").get_to(attachment.units);
    item.at("long_name").get_to(attachment.long_name);
    item.at("formula").get_to(attachment.formula);
    item.at("dimensions").get_to(attachment.dimensions);
    item.at("extents").get_to(attachment.extents);
    attachment.numbers = numbers_from(item.at("numbers"));
    item.at("labels").get_to(attachment.labels);
    result.attachments.push_back(std::move(attachment));
  }
  return result;
}

}  // namespace splash::experiments
