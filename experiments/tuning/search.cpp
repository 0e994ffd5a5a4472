#include "experiments/tuning/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::experiments {
namespace {

constexpr double kConfidence = 0.99;
constexpr double kLastShare = 0.4;  // of the budget, kept for the last two candidates

using Indices = std::vector<std::size_t>;

class Search {
 public:
  Search(const std::vector<Candidate>& candidates, const SearchLimits& limits)
      : candidates_(candidates), limits_(limits), begin_(limits.now()), seconds_(candidates.size()) {}

  SearchResult run() {
    for (const Candidate& candidate : candidates_) sample(candidate);  // unseen: loads modules, wakes clocks
    Indices alive(candidates_.size());
    std::iota(alive.begin(), alive.end(), std::size_t{0});
    sweep(alive);  // one sample of each, whatever the budget
    const double share = 1 - kLastShare;
    for (int samples = limits_.first_samples; alive.size() > 2; samples *= 2) {
      if (!sweep(alive, samples, share)) break;
      keep_better_half(alive);
    }
    keep_best(alive);
    const std::size_t fresh_from = seconds_[0].size();
    if (alive.size() == 2) ran_out_ |= !sweep(alive, limits_.last_samples, 1);
    return result(alive, fresh_from);
  }

 private:
  double elapsed() const { return limits_.now() - begin_; }

  static double sample(const Candidate& candidate) {
    const double seconds = candidate.sample();
    if (std::isfinite(seconds) && seconds > 0) return seconds;
    throw InvalidArgument(
        fmt::format("a call of {} took {} s; a time must be above 0", candidate.name, seconds));
  }

  // Samples each candidate once; every other sweep runs from the last to the first.
  void sweep(const Indices& alive) {
    const auto take = [&](std::size_t i) { seconds_[i].push_back(sample(candidates_[i])); };
    if (seconds_[0].size() % 2 == 0) {
      std::for_each(alive.begin(), alive.end(), take);
    } else {
      std::for_each(alive.rbegin(), alive.rend(), take);
    }
  }

  // Makes `times` sweeps. Returns false if that share of the budget ended first.
  bool sweep(const Indices& alive, int times, double share) {
    for (int i = 0; i < times; ++i) {
      if (elapsed() >= share * limits_.budget_seconds) return false;
      sweep(alive);
    }
    return true;
  }

  // Ratios to the default of all sweeps from `from` on in which the candidate took part.
  std::vector<double> ratios(std::size_t candidate, std::size_t from = 0) const {
    std::vector<double> ratios;
    for (std::size_t i = from; i < seconds_[candidate].size(); ++i)
      ratios.push_back(seconds_[candidate][i] / seconds_[0][i]);
    return ratios;
  }

  void sort_others(Indices& alive) const {
    std::stable_sort(alive.begin() + 1, alive.end(), [&](std::size_t a, std::size_t b) {
      return analysis::median(ratios(a)) < analysis::median(ratios(b));
    });
  }
  void keep_better_half(Indices& alive) const {
    sort_others(alive);
    alive.resize(1 + alive.size() / 2);
  }
  void keep_best(Indices& alive) {
    ran_out_ = alive.size() > 2;
    sort_others(alive);
    alive.resize(std::min<std::size_t>(alive.size(), 2));
  }

  BesideDefault difference(const std::vector<double>& ratios) const {
    if (static_cast<int64_t>(ratios.size()) < analysis::samples_needed(kConfidence))
      return BesideDefault::too_few;
    const analysis::Interval interval = analysis::median_interval(ratios, kConfidence);
    if (interval.high < 1 - limits_.least_gain) return BesideDefault::faster;
    if (interval.low > 1 + limits_.least_gain) return BesideDefault::slower;
    return BesideDefault::within_noise;
  }

  SearchResult result(const Indices& last, std::size_t fresh_from) const {
    SearchResult result;
    result.ran_out = ran_out_;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const bool is_last = i > 0 && last.size() == 2 && last[1] == i;
      const std::vector<double> fresh = ratios(i, fresh_from);
      const std::vector<double> of_default = is_last && !fresh.empty() ? fresh : ratios(i);
      CandidateResult of{.name = candidates_[i].name, .seconds = seconds_[i]};
      of.median = analysis::median(of.seconds);
      of.interval = analysis::median_interval(of.seconds, kConfidence);
      of.ratio = analysis::median(of_default);
      of.ratio_interval = analysis::median_interval(of_default, kConfidence);
      of.difference = i == 0 ? BesideDefault::within_noise : difference(is_last ? fresh : of_default);
      if (is_last && of.difference == BesideDefault::faster) result.best = i;
      result.candidates.push_back(std::move(of));
    }
    return result;
  }

  const std::vector<Candidate>& candidates_;
  SearchLimits limits_;
  double begin_;
  std::vector<std::vector<double>> seconds_;  // [candidate][sweep], until it is dropped
  bool ran_out_ = false;
};

}  // namespace

const char* to_string(BesideDefault difference) {
  switch (difference) {
    case BesideDefault::faster:
      return "faster";
    case BesideDefault::slower:
      return "slower";
    case BesideDefault::within_noise:
      return "within noise";
    case BesideDefault::too_few:
      return "too few samples";
  }
  return "";
}

SearchResult search(const std::vector<Candidate>& candidates, const SearchLimits& limits) {
  if (candidates.empty()) throw InvalidArgument("there is nothing to choose among");
  if (!(limits.budget_seconds > 0))
    throw InvalidArgument(fmt::format("the budget is {} s; it must be above 0", limits.budget_seconds));
  return Search(candidates, limits).run();
}

}  // namespace splash::experiments
