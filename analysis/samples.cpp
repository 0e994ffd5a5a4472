#include "analysis/samples.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "analysis/statistics.h"

namespace splash::analysis {
namespace {

constexpr std::size_t kHalf = 10;   // at least this many samples on each side show a drift
constexpr double kNormal = 1.4826;  // normal distribution: standard deviation / median absolute deviation
constexpr double kDeviations = 10, kApart = 0.05, kOften = 0.1;

std::string throttling(const ClockSpan& clock) {
  if (!(clock.after_hz < (1 - kMoved) * clock.before_hz)) return "";
  return fmt::format(
      "the clock fell from {:.0f} to {:.0f} MHz while this was timed: throttled; lock it (nvidia-smi "
      "--lock-gpu-clocks) or let the GPU cool, and run again",
      1e-6 * clock.before_hz, 1e-6 * clock.after_hz);
}

std::string drift(std::span<const double> seconds) {
  const std::size_t half = seconds.size() / 2;
  if (half < kHalf) return "";
  const double moved = median(seconds.subspan(half)) / median(seconds.first(half)) - 1;
  if (!(std::abs(moved) > kMoved)) return "";
  return fmt::format(
      "the samples drift: the second half's median is {:+.1f} % off; run again on a machine that does "
      "nothing "
      "else, with --set samples={}",
      100 * moved, 2 * seconds.size());
}

std::string outliers(std::span<const double> seconds) {
  const double middle = median(seconds);
  std::vector<double> deviations;
  for (const double s : seconds) deviations.push_back(std::abs(s - middle));
  const double far = std::max(kDeviations * kNormal * median(deviations), kApart * middle);
  const auto count = std::count_if(deviations.begin(), deviations.end(), [&](double d) { return d > far; });
  if (count < 2 || static_cast<double>(count) < kOften * static_cast<double>(seconds.size())) return "";
  return fmt::format(
      "{} of {} samples are outliers, up to {:.2g} times the median: something else ran; run again without "
      "it, "
      "or with --set samples={}",
      count, seconds.size(), *std::max_element(seconds.begin(), seconds.end()) / middle, 4 * seconds.size());
}

double number_at(const report::Report& report, const char* name, int64_t row) {
  const report::Column* column = report.find(name);
  return column == nullptr || column->info.is_text || column->width != 1
             ? std::numeric_limits<double>::quiet_NaN()
             : column->numbers[static_cast<std::size_t>(row)];
}

}  // namespace

std::string why_spoilt(std::span<const double> seconds, const ClockSpan& clock) {
  if (std::string sentence = throttling(clock); !sentence.empty()) return sentence;
  std::vector<double> samples;  // without padding, in order
  std::copy_if(seconds.begin(), seconds.end(), std::back_inserter(samples),
               [](double s) { return !std::isnan(s); });
  if (samples.empty()) return "";
  if (std::string sentence = drift(samples); !sentence.empty()) return sentence;
  return outliers(samples);
}

bool holds_samples(const report::Column& column) {
  return !column.info.is_text && column.info.units == "s" && column.info.dimension == "sample" &&
         !column.info.reproducible;
}

std::string why_spoilt(const report::Report& report, const report::Column& times, int64_t row) {
  const auto width = static_cast<std::size_t>(times.width);
  return why_spoilt(std::span(times.numbers).subspan(static_cast<std::size_t>(row) * width, width),
                    {number_at(report, "clock_before", row), number_at(report, "clock_after", row)});
}

std::vector<SpoiltCase> spoilt_cases(const report::Report& report) {
  std::vector<SpoiltCase> cases;
  for (const report::Column& column : report.results) {
    if (!holds_samples(column)) continue;
    for (int64_t row = 0; row < report.cases(); ++row) {
      if (std::string sentence = why_spoilt(report, column, row); !sentence.empty())
        cases.push_back({row, column.info.name, std::move(sentence)});
    }
  }
  return cases;
}

}  // namespace splash::analysis
