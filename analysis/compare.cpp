#include "analysis/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>

#include "analysis/samples.h"

namespace splash::analysis {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Whether the column says which case it is, and not what came out.
bool names_case(const report::ColumnInfo& info) {
  return info.is_parameter || info.name == "experiment" || info.name == "case_id" ||
         info.name == "case_index";
}

// The columns, in both reports, that say which case it is.
std::vector<std::string> key_columns(const report::Report& before, const report::Report& after) {
  std::vector<std::string> names;
  for (const report::Column& column : before.results) {
    const report::ColumnInfo& info = column.info;
    const report::Column* other = after.find(info.name);
    const bool key = names_case(info) && info.name != "case_id" && info.name != "case_index";
    if (key && other && other->info.is_text == info.is_text && info.dimension.empty() &&
        other->info.dimension.empty())
      names.push_back(info.name);
  }
  return names;
}

std::string case_parameters(const report::Report& report, const std::vector<std::string>& keys, int64_t row) {
  std::string parameters;
  for (const std::string& key : keys) {
    const report::Column& column = *report.find(key);
    const std::string value = column.info.is_text               ? column.texts[row]
                              : std::isnan(column.numbers[row]) ? "missing"
                                                                : fmt::format("{}", column.numbers[row]);
    parameters += fmt::format("{}{}={}", parameters.empty() ? "" : ", ", key, value);
  }
  return parameters;
}

struct MatchedCase {
  std::string parameters;
  int64_t before = 0, after = 0;
};

using Rows = std::map<std::string, std::vector<int64_t>>;

Rows rows_by(const report::Report& report, const std::vector<std::string>& keys,
             const std::set<int64_t>& rows) {
  Rows found;
  for (const int64_t row : rows) found[case_parameters(report, keys, row)].push_back(row);
  return found;
}

// Matches the cases whose parameters occur once in each report; other cases have no unambiguous partner. What
// is left is matched again without the experiment's name, if both reports tell the kind.
std::vector<MatchedCase> match(const report::Report& before, const report::Report& after,
                               Comparison& comparison) {
  std::vector<std::string> keys = key_columns(before, after), shown = keys;
  std::erase(shown, kKindColumn);  // the experiment's name tells it
  std::set<int64_t> left_before, left_after;
  for (int64_t row = 0; row < before.cases(); ++row) left_before.insert(row);
  for (int64_t row = 0; row < after.cases(); ++row) left_after.insert(row);
  std::vector<MatchedCase> matched;
  const auto match_by_keys = [&] {
    const Rows rows_before = rows_by(before, keys, left_before),
               rows_after = rows_by(after, keys, left_after);
    for (const auto& [parameters, rows] : rows_before) {
      const auto partner = rows_after.find(parameters);
      if (rows.size() != 1 || partner == rows_after.end() || partner->second.size() != 1) continue;
      const int64_t row = rows.front(), other = partner->second.front();
      matched.push_back({case_parameters(before, shown, row), row, other});
      left_before.erase(row);
      left_after.erase(other);
    }
  };
  match_by_keys();
  if (std::erase(keys, "experiment") > 0 && std::ranges::count(keys, kKindColumn) > 0) match_by_keys();
  std::ranges::sort(matched, {}, &MatchedCase::before);
  for (const int64_t row : left_before) comparison.only_before.push_back(case_parameters(before, shown, row));
  for (const int64_t row : left_after) comparison.only_after.push_back(case_parameters(after, shown, row));
  return matched;
}

double relative_difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double difference = std::abs(a - b) / std::max(std::abs(a), std::abs(b));
  return std::isfinite(difference) ? difference : kInfinity;
}

double entry(const report::Column& column, int64_t row, int64_t i) {
  return i < column.width ? column.numbers[row * column.width + i]
                          : report::kMissing;  // narrower columns are padded
}

ColumnChange compare_column(const report::Column& before, const report::Column& after,
                            const std::vector<MatchedCase>& cases, double tolerance) {
  ColumnChange change{
      .column = before.info.name, .cases = static_cast<int64_t>(cases.size()), .worst_case = ""};
  if (before.info.is_text) change.before = change.after = report::kMissing;
  for (const MatchedCase& matched : cases) {
    double worst = 0, a = report::kMissing, b = report::kMissing;
    if (before.info.is_text) {
      worst = before.texts[matched.before] == after.texts[matched.after] ? 0 : kInfinity;
    }
    const int64_t width = before.info.is_text ? 0 : std::max(before.width, after.width);
    for (int64_t i = 0; i < width; ++i) {
      const double x = entry(before, matched.before, i), y = entry(after, matched.after, i);
      const double difference = relative_difference(x, y);
      if (i > 0 && difference <= worst) continue;
      worst = difference, a = x, b = y;
    }
    if (worst > tolerance) ++change.differing;
    if (worst > change.max_difference) {
      change.max_difference = worst, change.before = a, change.after = b;
      change.worst_case = matched.parameters;
    }
  }
  change.difference = change.differing > 0 ? Difference::different : Difference::same;
  return change;
}

std::span<const double> samples_of(const report::Column& column, int64_t row) {
  return std::span(column.numbers).subspan(row * column.width, column.width);
}

int64_t count_samples(std::span<const double> samples) {
  return std::count_if(samples.begin(), samples.end(), [](double x) { return !std::isnan(x); });
}

void judge_times(TimeChange& change, int64_t fewest_samples, const CompareOptions& options) {
  const int64_t needed = samples_needed(options.confidence);
  if (fewest_samples < needed) {
    change.note = fmt::format("{} samples, an interval at {} % needs {}", fewest_samples,
                              100 * options.confidence, needed);
    return;
  }
  const Interval &a = change.before_interval, &b = change.after_interval;
  const bool disjoint = a.high < b.low || b.high < a.low;
  const double apart = std::abs(change.after - change.before) / change.before;
  if (disjoint && apart > options.time_threshold) {
    change.difference = change.after > change.before ? Difference::slower : Difference::faster;
  } else if (!disjoint && apart <= options.time_threshold) {
    change.difference = Difference::same;
  } else {
    change.note = disjoint ? fmt::format("the medians differ for certain, but by no more than {} %",
                                         100 * options.time_threshold)
                           : fmt::format("the medians are more than {} % apart, but their intervals overlap",
                                         100 * options.time_threshold);
  }
}

TimeChange compare_times(const report::Report& before, const report::Report& after,
                         const report::Column& column_before, const report::Column& column_after,
                         const MatchedCase& matched, const CompareOptions& options) {
  const auto case_id = [](const report::Report& report, int64_t row) {
    const report::Column* ids = report.find("case_id");
    return ids && ids->info.is_text ? ids->texts[row] : std::string();
  };
  const std::span<const double> a = samples_of(column_before, matched.before);
  const std::span<const double> b = samples_of(column_after, matched.after);
  TimeChange change;
  change.column = column_before.info.name;
  change.case_parameters = matched.parameters;
  change.case_id_before = case_id(before, matched.before);
  change.case_id_after = case_id(after, matched.after);
  change.before = median(a), change.after = median(b);
  change.before_interval = median_interval(a, options.confidence);
  change.after_interval = median_interval(b, options.confidence);
  change.ratio = change.after / change.before;
  judge_times(change, std::min(count_samples(a), count_samples(b)), options);
  const auto tell = [&](const char* which, const std::string& spoilt) {
    if (!spoilt.empty())
      change.note += fmt::format("{}{}: {}", change.note.empty() ? "" : "; ", which, spoilt);
  };
  tell("before", why_spoilt(before, column_before, matched.before));
  tell("after", why_spoilt(after, column_after, matched.after));
  return change;
}

std::vector<ClaimChange> compare_claims(const report::Report& before, const report::Report& after) {
  constexpr const char* kAbsent = "absent";
  const auto verdict = [](const report::Report& report, const std::string& id) -> std::string {
    const auto found = std::find_if(report.claims.begin(), report.claims.end(),
                                    [&](const report::ClaimResult& claim) { return claim.id == id; });
    return found == report.claims.end() ? kAbsent : to_string(found->verdict);
  };
  std::vector<ClaimChange> changes;
  for (const report::ClaimResult& claim : before.claims) {
    const std::string now = verdict(after, claim.id);
    if (now == to_string(claim.verdict)) continue;
    changes.push_back(
        {claim.id, to_string(claim.verdict), now, claim.verdict == report::Verdict::reproduced});
  }
  for (const report::ClaimResult& claim : after.claims) {
    if (verdict(before, claim.id) == kAbsent)
      changes.push_back({claim.id, kAbsent, to_string(claim.verdict), false});
  }
  return changes;
}

}  // namespace

const char* to_string(Difference found) {
  switch (found) {
    case Difference::same:
      return "SAME";
    case Difference::different:
      return "DIFFERENT";
    case Difference::faster:
      return "FASTER";
    case Difference::slower:
      return "SLOWER";
    case Difference::unsure:
      break;
  }
  return "UNSURE";
}

Comparison compare_reports(const report::Report& before, const report::Report& after,
                           const CompareOptions& options) {
  Comparison comparison;
  const std::vector<MatchedCase> matched = match(before, after, comparison);
  comparison.matched_cases = static_cast<int64_t>(matched.size());

  for (const report::Column& column : before.results) {
    const report::ColumnInfo& info = column.info;
    const report::Column* other = after.find(info.name);
    if (names_case(info) || !other || other->info.is_text != info.is_text) continue;
    if (info.reproducible && other->info.reproducible) {
      comparison.columns.push_back(compare_column(column, *other, matched, options.relative_tolerance));
    } else if (holds_samples(column) && holds_samples(*other)) {
      for (const MatchedCase& pair : matched) {
        comparison.times.push_back(compare_times(before, after, column, *other, pair, options));
      }
    }
  }
  comparison.claims = compare_claims(before, after);

  comparison.regressed =
      std::any_of(comparison.columns.begin(), comparison.columns.end(),
                  [](const ColumnChange& change) { return change.difference == Difference::different; }) ||
      std::any_of(comparison.times.begin(), comparison.times.end(),
                  [](const TimeChange& change) { return change.difference == Difference::slower; }) ||
      std::any_of(comparison.claims.begin(), comparison.claims.end(),
                  [](const ClaimChange& change) { return change.regressed; });
  return comparison;
}

}  // namespace splash::analysis
