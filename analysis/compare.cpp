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

std::string value_text(const report::Report& report, const std::string& name, int64_t row) {
  const report::Column& column = *report.find(name);
  if (column.info.is_text) return column.texts[row];
  return std::isnan(column.numbers[row]) ? "" : fmt::format("{}", column.numbers[row]);
}

// Without the parameters that the case does not have.
std::string case_parameters(const report::Report& report, const std::vector<std::string>& keys, int64_t row) {
  std::string parameters;
  for (const std::string& key : keys) {
    const std::string value = value_text(report, key, row);
    if (!value.empty()) parameters += fmt::format("{}{}={}", parameters.empty() ? "" : ", ", key, value);
  }
  return parameters;
}

// What a person needs to tell a case apart: the parameters that differ within its experiment, in either
// report.
class Telling {
 public:
  Telling(const report::Report& before, const report::Report& after, std::vector<std::string> keys)
      : keys_(std::move(keys)) {
    std::erase(keys_, kKindColumn);  // the experiment's name tells it
    for (const report::Report* report : {&before, &after}) {
      for (int64_t row = 0; row < report->cases(); ++row) {
        auto& of_experiment = values_[experiment(*report, row)];
        for (const std::string& key : keys_) of_experiment[key].insert(value_text(*report, key, row));
      }
    }
  }

  std::string operator()(const report::Report& report, int64_t row) const {
    std::vector<std::string> shown = keys_;
    std::erase_if(shown, [&](const std::string& key) {
      return key != "experiment" && key != "implementation" &&
             values_.at(experiment(report, row)).at(key).size() < 2;
    });
    return case_parameters(report, shown, row);
  }

 private:
  std::string experiment(const report::Report& report, int64_t row) const {
    return std::ranges::count(keys_, "experiment") > 0 ? value_text(report, "experiment", row) : "";
  }
  std::vector<std::string> keys_;
  std::map<std::string, std::map<std::string, std::set<std::string>>> values_;  // by experiment and parameter
};

bool is_peer(const report::Report& report, int64_t row) {
  const report::Column* const names = report.find("implementation");
  return names != nullptr && names->info.is_text && names->texts[row].starts_with("torch-");
}

struct MatchedCase {
  std::string parameters;
  int64_t before = 0, after = 0;
  bool peer = false;
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
  std::vector<std::string> keys = key_columns(before, after);
  const Telling tell(before, after, keys);
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
      matched.push_back({tell(before, row), row, other, is_peer(before, row)});
      left_before.erase(row);
      left_after.erase(other);
    }
  };
  match_by_keys();
  if (std::erase(keys, "experiment") > 0 && std::ranges::count(keys, kKindColumn) > 0) match_by_keys();
  std::ranges::sort(matched, {}, &MatchedCase::before);
  for (const int64_t row : left_before) {
    comparison.only_before.push_back(tell(before, row));
    comparison.lost = comparison.lost || !is_peer(before, row);
  }
  for (const int64_t row : left_after) comparison.only_after.push_back(tell(after, row));
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
    if (worst > tolerance && matched.peer) ++change.differing_peers;
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

void decide(TimeChange& change, const char* what, const CompareOptions& options) {
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
                           : fmt::format("the medians are more than {} % apart, but their {} overlap",
                                         100 * options.time_threshold, what);
  }
}

// One run a side: by the intervals of their samples.
void judge_samples(TimeChange& change, std::span<const double> a, std::span<const double> b,
                   const CompareOptions& options) {
  change.before = median(a), change.after = median(b);
  change.before_interval = median_interval(a, options.confidence);
  change.after_interval = median_interval(b, options.confidence);
  const int64_t needed = samples_needed(options.confidence);
  const int64_t fewest = std::min(count_samples(a), count_samples(b));
  if (fewest >= needed) return decide(change, "intervals", options);
  change.note =
      fmt::format("{} samples, an interval at {} % needs {}", fewest, 100 * options.confidence, needed);
}

// Several runs a side, a median each. If nothing changed, every order of the a + b runs is equally likely,
// and one of C(a + b, a) puts all of one side in front.
void judge_runs(TimeChange& change, const std::vector<double>& a, const std::vector<double>& b,
                const CompareOptions& options) {
  change.before = median(a), change.after = median(b);
  change.before_interval = {std::ranges::min(a), std::ranges::max(a)};
  change.after_interval = {std::ranges::min(b), std::ranges::max(b)};
  double orders = 1;
  for (std::size_t i = 1; i <= a.size(); ++i)
    orders *= static_cast<double>(b.size() + i) / static_cast<double>(i);
  constexpr double kRounding = 1e-9;
  if (orders * (1 - options.confidence) >= 1 - kRounding) return decide(change, "runs", options);
  change.note =
      fmt::format("{} and {} runs: chance alone sorts them once in {:.0f}, which is too often at {} %",
                  a.size(), b.size(), orders, 100 * options.confidence);
}

// One side: its runs, and for each the row of a case of the first run.
struct Side {
  std::span<const report::Report> runs;
  std::vector<std::map<int64_t, int64_t>> rows{};

  explicit Side(std::span<const report::Report> all) : runs(all) {
    for (const report::Report& run : runs.subspan(1)) {
      Comparison ignored;
      rows.emplace_back();
      for (const MatchedCase& matched : match(runs.front(), run, ignored))
        rows.back()[matched.before] = matched.after;
    }
  }

  // The median of a case in each run that has it.
  std::vector<double> medians(const std::string& name, int64_t row) const {
    std::vector<double> found;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const report::Column* const column = runs[i].find(name);
      if (column == nullptr || !holds_samples(*column) || (i > 0 && !rows[i - 1].contains(row))) continue;
      const double value = median(samples_of(*column, i == 0 ? row : rows[i - 1].at(row)));
      if (!std::isnan(value)) found.push_back(value);
    }
    return found;
  }
};

TimeChange compare_times(const Side& before, const Side& after, const report::Column& column_before,
                         const report::Column& column_after, const MatchedCase& matched,
                         const CompareOptions& options) {
  const auto case_id = [](const report::Report& report, int64_t row) {
    const report::Column* ids = report.find("case_id");
    return ids && ids->info.is_text ? ids->texts[row] : std::string();
  };
  const report::Report &first = before.runs.front(), &second = after.runs.front();
  TimeChange change;
  change.column = column_before.info.name;
  change.case_parameters = matched.parameters;
  change.case_id_before = case_id(first, matched.before);
  change.case_id_after = case_id(second, matched.after);
  change.peer = matched.peer;
  const std::vector<double> a = before.medians(change.column, matched.before);
  const std::vector<double> b = after.medians(change.column, matched.after);
  if (a.size() > 1 && b.size() > 1) {
    change.runs_before = static_cast<int64_t>(a.size());
    change.runs_after = static_cast<int64_t>(b.size());
    judge_runs(change, a, b, options);
  } else {
    judge_samples(change, samples_of(column_before, matched.before), samples_of(column_after, matched.after),
                  options);
  }
  change.ratio = change.after / change.before;
  const auto tell = [&](const char* which, const std::string& spoilt) {
    if (!spoilt.empty())
      change.note += fmt::format("{}{}: {}", change.note.empty() ? "" : "; ", which, spoilt);
  };
  tell("before", why_spoilt(first, column_before, matched.before));
  tell("after", why_spoilt(second, column_after, matched.after));
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

Comparison compare_runs(std::span<const report::Report> before_runs,
                        std::span<const report::Report> after_runs, const CompareOptions& options) {
  const Side before(before_runs), after(after_runs);
  const report::Report &first = before_runs.front(), &second = after_runs.front();
  Comparison comparison;
  const std::vector<MatchedCase> matched = match(first, second, comparison);
  comparison.matched_cases = static_cast<int64_t>(matched.size());

  for (const report::Column& column : first.results) {
    const report::ColumnInfo& info = column.info;
    const report::Column* other = second.find(info.name);
    if (names_case(info) || !other || other->info.is_text != info.is_text) continue;
    if (info.reproducible && other->info.reproducible) {
      comparison.columns.push_back(compare_column(column, *other, matched, options.relative_tolerance));
    } else if (holds_samples(column) && holds_samples(*other)) {
      for (const MatchedCase& pair : matched)
        comparison.times.push_back(compare_times(before, after, column, *other, pair, options));
    }
  }
  comparison.claims = compare_claims(first, second);

  comparison.regressed =
      std::ranges::any_of(
          comparison.columns,
          [](const ColumnChange& change) { return change.differing > change.differing_peers; }) ||
      std::ranges::any_of(
          comparison.times,
          [](const TimeChange& change) { return change.difference == Difference::slower && !change.peer; }) ||
      std::ranges::any_of(comparison.claims, &ClaimChange::regressed);
  return comparison;
}

Comparison compare_reports(const report::Report& before, const report::Report& after,
                           const CompareOptions& options) {
  return compare_runs({&before, 1}, {&after, 1}, options);
}

}  // namespace splash::analysis
