#include "experiments/kinds/support/timing.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "analysis/counts.h"
#include "analysis/samples.h"
#include "analysis/statistics.h"
#include "core/error.h"

namespace splash::experiments {

report::ColumnInfo taken(const char* name, const char* units, const char* long_name, const char* formula,
                         const std::string& missing_reason) {
  return {.name = name,
          .units = units,
          .long_name = long_name,
          .formula = formula,
          .reproducible = false,
          .missing_reason = missing_reason};
}

std::vector<ParameterInfo> timing_parameters() {
  using enum ParameterType;
  return {
      {"method",
       text,
       std::string("events"),
       "",
       "lone calls between events, or a replayed graph",
       {"events", "graph"}},
      {"cache", text, std::string("warm"), "", "whether L2 is flushed before each call", {"warm", "cold"}},
      {"samples", integer, int64_t{40}, "1", "timed samples, fewer where a call takes long", {}},
  };
}

gpu::TimingOptions timing_of(const Parameters& p) {
  return {.cache = get_text(p, "cache") == "cold" ? gpu::CacheState::cold : gpu::CacheState::warm,
          .method = get_text(p, "method") == "graph" ? gpu::TimingMethod::graph : gpu::TimingMethod::events,
          .samples = get_integer(p, "samples")};
}

void require_one(const Parameters& p, const std::string& name) {
  if (get_integer(p, name) >= 1) return;
  throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", name, get_integer(p, name)));
}

void require_positive(const Parameters& parameters, const std::string& name) {
  if (const double value = get_number(parameters, name); !(value > 0))
    throw InvalidArgument(fmt::format("{} is {}; it must be above 0", name, value));
}

void check_timing(const Parameters& p) {
  require_one(p, "samples");
  if (get_text(p, "method") == "graph" && get_text(p, "cache") == "cold")
    throw InvalidArgument("a replayed graph has a warm cache; cold timing needs the method events");
}

std::vector<report::ColumnInfo> time_columns(const std::string& missing_reason) {
  const auto column = [&](const char* name, const char* long_name, const char* formula) {
    return taken(name, "s", long_name, formula, missing_reason);
  };
  std::vector<report::ColumnInfo> columns{
      column("time", "device time of one call", "between CUDA events; of a graph: replay / calls"),
      column("time_median", "median device time of one call", "median of time"),
      column("time_low", "lower end of the median's 95 % interval", "order statistics of time"),
      column("time_high", "upper end of the median's 95 % interval", "order statistics of time")};
  columns.front().dimension = "sample";
  return columns;
}

std::vector<report::ColumnInfo> clock_columns(const std::string& missing_reason) {
  const char* formula = "cycles of a spinning block over time";
  return {taken("clock_before", "Hz", "multiprocessor clock before the samples", formula, missing_reason),
          taken("clock_after", "Hz", "multiprocessor clock after the samples", formula, missing_reason)};
}

std::vector<report::ColumnInfo> run_columns() {
  report::ColumnInfo warning = taken("warning", "text", "what spoils the timing",
                                     "throttling, drift or outliers of the samples", "nothing was noticed");
  report::ColumnInfo version =
      taken("version", "text", "version of the implementation, or why it did not run",
            "as the implementation reports it", "");
  warning.is_text = version.is_text = true;
  return {std::move(warning), std::move(version)};
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<double> time_on_host(const std::function<void()>& call, int64_t samples) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < samples; ++i) {
    const double start = seconds_now();
    call();
    seconds.push_back(seconds_now() - start);
  }
  return seconds;
}

void add_samples(std::vector<double> seconds, CaseResult& result) {
  const auto interval = analysis::median_interval(seconds);
  result.numbers["time_median"] = analysis::median(seconds);
  result.numbers["time_low"] = interval.low;
  result.numbers["time_high"] = interval.high;
  result.vectors["time"] = std::move(seconds);
}

void add_times(std::vector<double> seconds, CaseResult& result) {
  if (!result.texts.contains("warning")) result.texts["warning"] = analysis::why_spoilt(seconds);
  add_samples(std::move(seconds), result);
}

void add_dense_equivalent(const AttentionSpec& spec, bool backward, CaseResult& result) {
  const auto pairs = static_cast<double>(visible_pairs(spec.shape, spec.mask));
  const auto head_dim = static_cast<double>(spec.shape.head_dim);
  const double flops =
      analysis::forward_flops(pairs, head_dim) + (backward ? analysis::backward_flops(pairs, head_dim) : 0);
  result.numbers["dense_equivalent_flops"] = flops;
  result.numbers["dense_equivalent_rate"] = flops / result.numbers.at("time_median");
}

void time_call(const std::function<void()>& call, const gpu::Stream& stream, const Parameters& p,
               CaseResult& result) {
  time_call(call, stream, timing_of(p), 1, result);
}

void time_call(const std::function<void()>& call, const gpu::Stream& stream,
               const gpu::TimingOptions& options, int64_t times, CaseResult& result) {
  gpu::Timing timing = gpu::time_on_device(call, stream, options);
  for (double& seconds : timing.seconds) seconds /= static_cast<double>(times);
  const analysis::ClockSpan clock{timing.clock_before_hz, timing.clock_after_hz};
  result.texts["warning"] = analysis::why_spoilt(timing.seconds, clock);
  add_times(std::move(timing.seconds), result);
  result.numbers["clock_before"] = timing.clock_before_hz;
  result.numbers["clock_after"] = timing.clock_after_hz;
  result.texts["version"] = "this build";
}

}  // namespace splash::experiments
