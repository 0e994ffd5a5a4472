#include "experiments/claims/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

#include "analysis/statistics.h"
#include "experiments/runner/value.h"

namespace splash::experiments {
namespace {

using analysis::Interval;
using report::Column;

bool equals(const Column& column, std::size_t row, const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value))
    return column.info.is_text && column.texts[row] == *text;
  if (column.info.is_text || column.width != 1) return false;
  if (const auto* integer = std::get_if<int64_t>(&value))
    return column.numbers[row] == static_cast<double>(*integer);
  if (const auto* flag = std::get_if<bool>(&value)) return column.numbers[row] == (*flag ? 1.0 : 0.0);
  return column.numbers[row] == std::get<double>(value);
}

Interval mean_interval(const std::vector<double>& values, double mean) {
  const double n = static_cast<double>(values.size());
  if (values.size() < 2) return {mean, mean};
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double half = 1.96 * std::sqrt(squares / (n - 1) / n);
  return {mean - half, mean + half};
}

Interval wilson_interval(double share, double n) {
  const double z = 1.96;
  const double centre = (share + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z / (1 + z * z / n) * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return {std::min(share, centre - half), std::max(share, centre + half)};
}

void summarise(Statistic statistic, const std::vector<double>& values, Measured& result) {
  const double n = static_cast<double>(values.size());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  auto exactly = [&](double value) { result.ours = result.low = result.high = value; };
  auto within = [&](double value, Interval interval) {
    result.ours = value;
    result.low = interval.low;
    result.high = interval.high;
  };
  switch (statistic) {
    case Statistic::median:
      return within(analysis::median(values), analysis::median_interval(values));
    case Statistic::mean:
      return within(sum / n, mean_interval(values, sum / n));
    case Statistic::min:
      return exactly(*std::min_element(values.begin(), values.end()));
    case Statistic::max:
      return exactly(*std::max_element(values.begin(), values.end()));
    case Statistic::median_case:
      return exactly(analysis::median(values));
    case Statistic::sum:
      return exactly(sum);
    case Statistic::p05:
      return exactly(analysis::quantile(values, 0.05));
    case Statistic::p95:
      return exactly(analysis::quantile(values, 0.95));
    case Statistic::fraction_true: {
      const double share =
          static_cast<double>(std::count_if(values.begin(), values.end(), [](double x) { return x != 0; })) /
          n;
      return within(share, wilson_interval(share, n));
    }
  }
}

// The interval of each value of a column x_median, from the columns x_low and x_high. If an end was not
// recorded it is missing, and the number itself stands for it. Any other column has no intervals: its numbers
// stand for both ends.
class Intervals {
 public:
  Intervals(const report::Report& report, const std::string& column) {
    constexpr std::string_view kEnd = "_median";
    if (!column.ends_with(kEnd)) return;
    const std::string stem = column.substr(0, column.size() - kEnd.size());
    low_ = report.find(stem + "_low");
    high_ = report.find(stem + "_high");
  }

  Interval of(double value, std::size_t row) const {
    const auto end = [&](const Column* column) {
      return column == nullptr || column->numbers.size() <= row ? value : column->numbers[row];
    };
    const double low = end(low_), high = end(high_);
    return {low <= value ? low : value, high >= value ? high : value};
  }

 private:
  const Column *low_ = nullptr, *high_ = nullptr;
};

// Whether the statistic is of these values alone, and never falls where one of them rises.
bool is_of_these(Statistic statistic) {
  return statistic == Statistic::min || statistic == Statistic::max || statistic == Statistic::sum ||
         statistic == Statistic::median_case;
}

// The interval of such a statistic of several values that each lie in an interval: the least value, say, lies
// between the least lower end and the least upper end.
Interval interval_of(Statistic statistic, const std::vector<Interval>& intervals) {
  std::vector<double> low, high;
  for (const Interval& each : intervals) {
    low.push_back(each.low);
    high.push_back(each.high);
  }
  return {statistic_of(statistic, low), statistic_of(statistic, high)};
}

std::string describe(const Measurement& measurement, int64_t cases) {
  std::string text = fmt::format("{} of {} over {} case{}",
                                 statistic_names()[static_cast<std::size_t>(measurement.statistic)],
                                 measurement.column, cases, cases == 1 ? "" : "s");
  const char* separator = " with ";
  for (const Filter* filter : {&measurement.where, &measurement.held}) {
    for (const auto& [name, values] : *filter) {
      text += separator + name;
      for (std::size_t i = 0; i < values.size(); ++i) text += (i == 0 ? " " : " or ") + to_text(values[i]);
      separator = ", ";
    }
  }
  return text;
}

// Whether both are sums, and of unequally many cases: what one of them lacks, the quotient would hide.
bool lacks_cases(const Expectation& expectation, const Measured& ours, const Measured& over) {
  return expectation.measured.statistic == Statistic::sum && expectation.over->statistic == Statistic::sum &&
         ours.cases != over.cases;
}

// Whether the row has one of the values of each parameter, or the parameter has no effect on it.
bool is_held(const report::Report& report, const Filter& held, std::size_t row) {
  return std::all_of(held.begin(), held.end(), [&](const auto& entry) {
    const Column* column = report.find(entry.first);
    const bool has_effect = column != nullptr && (column->info.is_text ? !column->texts[row].empty()
                                                                       : !std::isnan(column->numbers[row]));
    return !has_effect || fits(report, {entry}, row);
  });
}

}  // namespace

bool fits(const report::Report& report, const Filter& where, std::size_t row) {
  return std::all_of(where.begin(), where.end(), [&](const auto& entry) {
    const Column* column = report.find(entry.first);
    return column != nullptr && std::any_of(entry.second.begin(), entry.second.end(),
                                            [&](const Value& value) { return equals(*column, row, value); });
  });
}

double statistic_of(Statistic statistic, const std::vector<double>& values) {
  Measured result;
  summarise(statistic, values, result);
  return result.ours;
}

Measured measure(const report::Report& report, const std::string& experiment,
                 const Measurement& measurement) {
  Measured result;
  result.ours = result.low = result.high = std::numeric_limits<double>::quiet_NaN();
  const Column* column = report.find(measurement.column);
  const Column* names = report.find("experiment");
  std::vector<double> values;
  std::vector<Interval> intervals;  // one per value
  const Intervals recorded(report, measurement.column);
  if (column != nullptr && names != nullptr && !column->info.is_text && column->width == 1) {
    for (std::size_t row = 0; row < names->texts.size(); ++row) {
      if (names->texts[row] != experiment || std::isnan(column->numbers[row])) continue;
      if (!fits(report, measurement.where, row) || !is_held(report, measurement.held, row)) continue;
      values.push_back(column->numbers[row]);
      intervals.push_back(recorded.of(column->numbers[row], row));
    }
  }
  result.cases = static_cast<int64_t>(values.size());
  result.formula = describe(measurement, result.cases);
  if (!values.empty()) summarise(measurement.statistic, values, result);
  if (values.empty()) return result;
  if (is_of_these(measurement.statistic) || values.size() == 1) {
    const Interval interval =
        values.size() == 1 ? intervals.front() : interval_of(measurement.statistic, intervals);
    result.low = std::min(result.low, interval.low);
    result.high = std::max(result.high, interval.high);
  }
  return result;
}

Measured measure(const report::Report& report, const std::string& experiment,
                 const Expectation& expectation) {
  Measured ours = measure(report, experiment, expectation.measured);
  if (!expectation.over) return ours;
  Measured over = measure(report, experiment, *expectation.over);
  if (!over.found()) return over;
  if (!ours.found()) return ours;
  if (lacks_cases(expectation, ours, over)) {
    Measured none;
    none.ours = none.low = none.high = std::numeric_limits<double>::quiet_NaN();
    none.why_none =
        fmt::format("a quotient of sums needs as many cases of both, not {} and {}", ours.cases, over.cases);
    return none;
  }
  const double ends[] = {ours.low / over.low, ours.low / over.high, ours.high / over.low,
                         ours.high / over.high};
  Measured ratio = ours;
  ratio.ours = ours.ours / over.ours;
  // An interval that reaches 0 does not bound the quotient. The quotients of the ends are then infinite.
  ratio.low = std::min(ratio.ours, *std::min_element(std::begin(ends), std::end(ends)));
  ratio.high = std::max(ratio.ours, *std::max_element(std::begin(ends), std::end(ends)));
  ratio.formula = fmt::format("{} / {}", ours.formula, over.formula);
  if (expectation.as == RatioAs::ratio) return ratio;
  const double base = expectation.as == RatioAs::gain_percent ? 1 : 0;
  for (double* value : {&ratio.ours, &ratio.low, &ratio.high}) *value = 100 * (*value - base);
  ratio.formula = fmt::format("100 ({} - {:.0f})", ratio.formula, base);
  return ratio;
}

Measured pooled(const std::vector<Measured>& runs) {
  std::vector<Measured> found;
  // A statistic that is not a number (0/0) says nothing.
  std::ranges::copy_if(runs, std::back_inserter(found),
                       [](const Measured& run) { return run.found() && !std::isnan(run.ours); });
  if (found.empty()) return {};
  if (found.size() == 1) return found.front();
  Measured all = found.front();
  std::vector<double> values;
  for (const Measured& run : found) {
    values.push_back(run.ours);
    all.low = std::min(all.low, run.low);
    all.high = std::max(all.high, run.high);
  }
  all.ours = analysis::median(values);
  all.formula += fmt::format(", median of {} runs", found.size());
  return all;
}

}  // namespace splash::experiments
