#include "experiments/cli/decode_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"
#include "experiments/cli/console.h"
#include "experiments/runner/case_json.h"

namespace splash::cli {
namespace {

using namespace analysis;
using experiments::plain_number;

std::string as_percent(double share) {
  return std::isnan(share) ? "-" : fmt::format("{:.3g} %", 100 * share);
}

void print_origin(const report::Report& report) {
  print(
      fmt::format("{}, commit {}\n\n", one_line(report.provenance.gpu), one_line(report.provenance.commit)));
}

// Of each step, in the light of all steps of the report.
std::vector<std::vector<StepFinding>> findings_of_each(const report::Report& report,
                                                       const std::vector<StepReading>& steps) {
  const std::vector<StepReading> all = step_readings(report);
  std::map<std::string, StepLine> lines;
  std::vector<std::vector<StepFinding>> findings;
  for (const StepReading& reading : steps) {
    const std::string& implementation = reading.step.implementation;
    if (!lines.contains(implementation)) lines[implementation] = line_through(all, implementation);
    findings.push_back(findings_of(reading, lines[implementation]));
  }
  return findings;
}

nlohmann::json case_json(const StepReading& reading) {
  return {{"case_id", reading.step.case_id},
          {"implementation", reading.step.implementation},
          {"problem", reading.step.problem},
          {"seconds", reading.step.seconds}};
}

}  // namespace

std::vector<StepReading> selected_steps(const report::Report& report, const std::string& prefix,
                                        const std::string& case_id) {
  if (!holds_decode_steps(report)) return {};
  std::vector<StepReading> steps = step_readings(report);
  const bool must_match =
      !steps.empty() && report.find("executed_flops") == nullptr;  // nothing else is there
  std::erase_if(steps, [&](const StepReading& reading) {
    return !reading.step.implementation.starts_with(prefix) || !reading.step.case_id.starts_with(case_id);
  });
  if (steps.empty() && must_match)
    throw InvalidArgument(
        fmt::format("the report has steps of decode, but none of an implementation '{}*' "
                    "with a case '{}*'",
                    prefix, case_id));
  return steps;
}

void print_steps(const report::Report& report, const std::vector<StepReading>& steps) {
  print_origin(report);
  std::vector<std::string> problems;
  for (const StepReading& reading : steps) {
    if (std::ranges::find(problems, reading.step.problem) == problems.end())
      problems.push_back(reading.step.problem);
  }
  for (const std::string& problem : problems) {
    TextTable table(
        {"step", "us", "DRAM", "MB", "of dense", "screened", "exact", "values", "candidates", "keys a row"});
    for (const StepReading& reading : steps) {
      if (reading.step.problem != problem) continue;
      const auto part = [&](double bytes) {
        return Cell{as_percent(bytes / reading.bytes.total()), Colour::dim};
      };
      table.add({{one_line(reading.step.implementation)},
                 {short_number(1e6 * reading.step.seconds)},
                 {as_percent(reading.floor / reading.step.seconds), Colour::bold},
                 {short_number(1e-6 * reading.bytes.total())},
                 {as_percent(reading.bytes.total() / reading.dense_bytes)},
                 part(reading.bytes.copies),
                 part(reading.bytes.rescored + reading.bytes.fallback),
                 part(reading.bytes.values),
                 {as_percent(reading.candidates)},
                 {short_number(reading.support_mean)}});
    }
    print(paint(one_line(problem), Colour::bold) + "\n");
    table.print();
    print("\n");
  }
}

nlohmann::json steps_json(const report::Report& report, const std::vector<StepReading>& steps) {
  nlohmann::json list = nlohmann::json::array();
  for (const StepReading& reading : steps) {
    nlohmann::json one = case_json(reading);
    one.update({{"floor_seconds", plain_number(reading.floor)},
                {"dram_bytes_counted", reading.step.dram_bytes},
                {"dense_bytes", reading.dense_bytes},
                {"bytes",
                 {{"screened", reading.bytes.copies},
                  {"start", reading.bytes.start},
                  {"lists", reading.bytes.lists},
                  {"rescored", reading.bytes.rescored},
                  {"fallback", reading.bytes.fallback},
                  {"values", reading.bytes.values},
                  {"rows", reading.bytes.rows}}},
                {"candidates_share", plain_number(reading.candidates)},
                {"rescored_share", plain_number(reading.rescored)},
                {"fell_back_share", plain_number(reading.fell_back)},
                {"support_mean", plain_number(reading.support_mean)}});
    list.push_back(std::move(one));
  }
  return {{"gpu", report.provenance.gpu}, {"decode_steps", list}};
}

void print_step_findings(const report::Report& report, const std::vector<StepReading>& steps) {
  print_origin(report);
  const auto findings = findings_of_each(report, steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const KernelCase& step = steps[i].step;
    print(fmt::format("{}  {}  {} us  case {}\n", paint(one_line(step.implementation), Colour::bold),
                      one_line(step.problem), short_number(1e6 * step.seconds), one_line(step.case_id)));
    for (const StepFinding& finding : findings[i])
      print_item(finding.cause, Colour::yellow,
                 fmt::format(", up to {:.3g}x: {}", finding.gain, finding.sentence));
    print("\n");
  }
}

nlohmann::json step_findings_json(const report::Report& report, const std::vector<StepReading>& steps) {
  const auto findings = findings_of_each(report, steps);
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    nlohmann::json one = case_json(steps[i]);
    one["findings"] = nlohmann::json::array();
    for (const StepFinding& finding : findings[i])
      one["findings"].push_back(
          {{"cause", finding.cause}, {"gain", finding.gain}, {"sentence", finding.sentence}});
    list.push_back(std::move(one));
  }
  return {{"gpu", report.provenance.gpu}, {"decode_steps", list}};
}

}  // namespace splash::cli
