#include "experiments/foreign/flashinfer.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "analysis/statistics.h"
#include "core/error.h"
#include "core/text.h"
#include "core/text_file.h"

namespace splash::experiments {
namespace {

using nlohmann::json;

constexpr int64_t kMostFile = int64_t{64} << 20;
constexpr std::size_t kMostWorkloads = 10000, kMostName = 300;

bool is_text(const json& object, const char* name) {
  return object.contains(name) && object[name].is_string() && !object[name].get<std::string>().empty() &&
         object[name].get<std::string>().size() <= kMostName;
}

std::string status_of(const Evaluated& evaluated) {
  if (evaluated.result == nullptr) {
    const auto says = [&](const char* words) { return evaluated.failure.find(words) != std::string::npos; };
    return says("has the shape")    ? "INCORRECT_SHAPE"
           : says("has the dtype")  ? "INCORRECT_DTYPE"
           : says("did not answer") ? "TIMEOUT"
                                    : "RUNTIME_ERROR";
  }
  const auto& findings = evaluated.result->findings;
  if (findings.empty()) return "PASSED";
  const bool wrong = std::any_of(findings.begin(), findings.end(), [](const BenchFinding& finding) {
    return finding.against == Against::wrong || finding.against == Against::poisoned;
  });
  return wrong ? "INCORRECT_NUMERICAL" : "RUNTIME_ERROR";
}

}  // namespace

std::vector<FlashinferWorkload> read_workloads(const std::string& path) {
  std::istringstream lines(read_text_file("the workloads", path, kMostFile));
  std::vector<FlashinferWorkload> workloads;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    json object = json::parse(line, nullptr, false);
    if (object.is_object() && object.contains("workload")) object = json(object["workload"]);
    const bool sound = object.is_object() && is_text(object, "uuid") && object.contains("axes") &&
                       object["axes"].is_object() && object.contains("inputs") &&
                       object["inputs"].is_object();
    if (!sound) {
      throw InvalidArgument(
          fmt::format("{}:{} is no workload: a JSON object with uuid, axes and inputs", path, number));
    }
    workloads.push_back({one_line(object["uuid"].get<std::string>()), object});
    if (workloads.size() > kMostWorkloads)
      throw InvalidArgument(fmt::format("{} holds more than {} workloads", path, kMostWorkloads));
  }
  if (workloads.empty()) throw InvalidArgument(fmt::format("{} holds no workload", path));
  return workloads;
}

std::string name_in(const std::string& path, const std::string& what) {
  const json object = json::parse(read_text_file(what, path, kMostFile), nullptr, false);
  if (object.is_object() && is_text(object, "name")) return one_line(object["name"].get<std::string>());
  throw InvalidArgument(fmt::format("{} {} is no JSON object with a name", what, path));
}

json trace_of(const std::string& definition, const std::string& solution, const FlashinferWorkload& workload,
              const Evaluated& evaluated, const std::string& timestamp) {
  const std::string status = status_of(evaluated);
  std::string hardware = evaluated.hardware, log = evaluated.failure;
  std::replace(hardware.begin(), hardware.end(), ' ', '_');  // "NVIDIA_H100"
  json evaluation{
      {"status", status},
      {"environment",
       {{"hardware", hardware},
        {"libs", evaluated.libraries.empty() ? json::object() : json::parse(evaluated.libraries)}}},
      {"timestamp", timestamp},
      {"correctness", nullptr},
      {"performance", nullptr}};
  if (evaluated.result != nullptr) {
    for (const BenchFinding& finding : evaluated.result->findings)
      log += (log.empty() ? "" : "\n") + finding.sentence;
    if (status != "RUNTIME_ERROR") {
      evaluation["correctness"] = {{"max_relative_error", evaluated.result->max_relative},
                                   {"max_absolute_error", evaluated.result->max_absolute}};
    }
    if (status == "PASSED") {
      constexpr double kMilli = 1e3;
      const double seconds = analysis::median(evaluated.result->seconds);
      const double reference =
          std::isnan(evaluated.result->reference_seconds) ? 0 : evaluated.result->reference_seconds;
      evaluation["performance"] = {{"latency_ms", kMilli * seconds},
                                   {"reference_latency_ms", kMilli * reference},
                                   {"speedup_factor", seconds > 0 ? reference / seconds : 0}};
    }
  }
  evaluation["log"] = log;
  return {{"definition", definition},
          {"workload", workload.workload},
          {"solution", solution},
          {"evaluation", evaluation}};
}

}  // namespace splash::experiments
