#include "analysis/decode_steps.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "analysis/named_columns.h"

namespace splash::analysis {
namespace {

constexpr double kFewKeys = 0.01;  // share of the keys that the dense pass may score in an ordinary step

}  // namespace

bool holds_decode_steps(const report::Report& report) {
  return report.find("keys_screened") != nullptr;
}

std::vector<KernelCase> decode_steps(const report::Report& report) {
  const NamedColumns table(report);
  std::vector<KernelCase> steps;
  for (int64_t row = 0; row < report.cases(); ++row) {
    if (std::isnan(table.number("time_median", row)) || std::isnan(table.number("keys_screened", row)))
      continue;
    const auto whole = [&](const char* name) { return table.count(name, row); };
    KernelCase step;
    step.row = row;
    step.case_id = table.text("case_id", row);
    step.implementation = table.text("implementation", row);
    step.shape = {whole("batch"), whole("q_heads"), whole("kv_heads"),
                  whole("q_len"), whole("kv_len"),  whole("head_dim")};
    step.shape.validate();
    step.dtype = dtype_from_string(table.text("dtype", row));
    step.setting = fmt::format("{}, d {}, alpha {:g}", table.text("dtype", row), step.shape.head_dim,
                               table.number("alpha", row));
    step.problem = fmt::format("{}, {}, alpha {:g}", table.text("dtype", row), to_string(step.shape),
                               table.number("alpha", row));
    for (const auto& [column, word] : {std::pair{"layer", "layer"}, {"query_variance", "variance"}}) {
      if (const double value = table.known_number(column, row); !std::isnan(value))
        step.problem += fmt::format(", {} {:g}", word, value);  // of a file, or of Gaussian inputs
    }
    step.seconds = table.number("time_median", row);
    step.flops = step.useful_flops = step.l2_bytes = report::kMissing;
    step.dram_bytes = table.number("dram_bytes_counted", row);
    count_tensors(step);
    step.use.blocks = 0;
    step.launches = table.small_count("launches", row);
    step.replayed = true;
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<StepReading> step_readings(const report::Report& report) {
  const NamedColumns table(report);
  std::vector<StepReading> readings;
  for (KernelCase& step : decode_steps(report)) {
    const auto number = [&](const char* name) { return table.number(name, step.row); };
    StepReading reading;
    DecodeBytes& bytes = reading.bytes;
    bytes = {.copies = number("copies_bytes"),
             .start = number("start_bytes"),
             .lists = number("lists_bytes"),
             .rescored = number("rescored_bytes"),
             .fallback = number("fallback_bytes"),
             .values = number("values_bytes")};
    bytes.rows = step.dram_bytes - bytes.total();
    reading.dense_bytes = dense_decode_bytes(step.shape, step.dtype);
    reading.floor = number("floor_time");
    reading.candidates = number("candidates_share");
    reading.rescored = number("rescored_share");
    reading.fell_back = number("fell_back_share");
    reading.support_mean = number("support_mean");
    reading.step = std::move(step);
    readings.push_back(std::move(reading));
  }
  return readings;
}

StepLine line_through(const std::vector<StepReading>& readings, const std::string& implementation) {
  constexpr int64_t kLeastSteps = 3;
  constexpr double kLeastSpread = 4;
  StepLine line{.fixed = report::kMissing, .rate = report::kMissing};
  double least = INFINITY, most = 0;
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;  // sums with the weight 1 / seconds^2
  for (const StepReading& reading : readings) {
    const double x = reading.step.dram_bytes, y = reading.step.seconds;
    if (reading.step.implementation != implementation || reading.fell_back > kFewKeys || !(x > 0) || !(y > 0))
      continue;
    const double weight = 1 / (y * y);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wy += weight * y;
    wxy += weight * x * y;
    least = std::min(least, x);
    most = std::max(most, x);
    ++line.steps;
  }
  if (line.steps < kLeastSteps || most < kLeastSpread * least) return line;
  const double slope = (w * wxy - wx * wy) / (w * wxx - wx * wx), fixed = (wy - slope * wx) / w;
  if (!(slope > 0)) return line;
  line.fixed = std::max(0.0, fixed);
  line.rate = line.fixed > 0 ? 1 / slope : wxx / wxy;  // through the origin, where nothing is fixed
  return line;
}

std::vector<StepFinding> findings_of(const StepReading& reading, const StepLine& line) {
  const double seconds = reading.step.seconds, floor = reading.floor, total = reading.bytes.total();
  std::vector<StepFinding> findings;
  const auto percent = [&](double part) { return fmt::format("{:.3g} %", 100 * part / total); };
  if (floor > 0) {
    std::string sentence = fmt::format("its bytes take {:.3g} of {:.4g} us at DRAM's measured ceiling",
                                       1e6 * floor, 1e6 * seconds);
    if (std::isfinite(line.fixed))
      sentence += fmt::format(
          "; over {} steps of this report {} takes {:.3g} us whatever it reads, and reads at {:.3g} TB/s",
          line.steps, reading.step.implementation, 1e6 * line.fixed, 1e-12 * line.rate);
    findings.push_back({"beyond DRAM", seconds / floor, std::move(sentence)});
    std::pair<const char*, double> parts[] = {{"what is screened", reading.bytes.copies},
                                              {"the first and the last keys", reading.bytes.start},
                                              {"lists", reading.bytes.lists},
                                              {"keys scored exactly", reading.bytes.rescored},
                                              {"keys of broad units", reading.bytes.fallback},
                                              {"values", reading.bytes.values},
                                              {"queries and results", reading.bytes.rows}};
    std::ranges::stable_sort(parts, [](const auto& a, const auto& b) { return a.second > b.second; });
    const double beyond = std::max(seconds - floor, 0.01 * seconds);
    findings.push_back(
        {"DRAM", seconds / beyond,
         fmt::format("{:.3g} MB, {:.3g} % of what dense attention reads: {} {}, {} {}, {} {}", 1e-6 * total,
                     100 * total / reading.dense_bytes, parts[0].first, percent(parts[0].second),
                     parts[1].first, percent(parts[1].second), parts[2].first, percent(parts[2].second))});
  }
  if (reading.fell_back > kFewKeys) {
    const double without = std::max(total - reading.bytes.fallback, 0.01 * total);
    const double ordinary = line.fixed + without / line.rate;  // seconds
    findings.push_back(
        {"broad rows", std::isfinite(ordinary) ? std::max(1.0, seconds / ordinary) : total / without,
         fmt::format("the dense pass scored {:.3g} % of the keys, all of their units: supports are broad "
                     "(here {:.4g} keys a row); a larger alpha or scale narrows them",
                     100 * reading.fell_back, reading.support_mean)});
  }
  std::ranges::stable_sort(findings, [](const auto& a, const auto& b) { return a.gain > b.gain; });
  return findings;
}

}  // namespace splash::analysis
