#pragma once
// Finds the fastest of several ways to compute the same. Successive halving (Karnin, Koren, Somekh 2013)
// compares ratios to the default. Every sweep samples the default beside the others, so that a drifting clock
// affects both. At the end the best candidate and the default are timed again, and these fresh samples alone
// decide.

#include <functional>
#include <string>
#include <vector>

#include "analysis/statistics.h"

namespace splash::experiments {

struct Candidate {
  std::string name;
  std::function<double()> sample;  // seconds of one call
};

struct SearchLimits {
  double budget_seconds = 10;
  std::function<double()> now;  // seconds of a monotonic clock
  int first_samples = 4;        // per candidate in the first round; each later round doubles it
  int last_samples = 30;        // per candidate, of the two that are left
  double least_gain = 0.01;     // that counts: the ratio's whole interval is farther from 1
};

enum class BesideDefault {
  faster,
  slower,
  within_noise,
  too_few
};  // compared with the default; too_few: the budget ended
const char* to_string(BesideDefault difference);

struct CandidateResult {
  std::string name;
  std::vector<double> seconds;    // all samples
  double median = 0;              // of all samples
  analysis::Interval interval{};  // of that median, at 99 %
  double ratio = 1;  // median of time / default's time in the same sweep; the last two: of fresh ones
  analysis::Interval ratio_interval{1, 1};
  BesideDefault difference = BesideDefault::within_noise;
};

struct SearchResult {
  std::vector<CandidateResult> candidates;  // in the given order; the first is the default
  std::size_t best = 0;                     // the default, unless another one is faster
  bool ran_out = false;                     // the budget ended before the search did
};

// candidates[0] is the default. Sampling stops when the budget is spent, but each candidate gets at least one
// sample. Throws InvalidArgument for no candidates, a budget that is not above 0, or a sample that is not a
// positive number.
SearchResult search(const std::vector<Candidate>& candidates, const SearchLimits& limits);

}  // namespace splash::experiments
