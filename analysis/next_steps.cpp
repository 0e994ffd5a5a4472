#include "analysis/next_steps.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::analysis {
namespace {

constexpr int64_t kLeastTile = 8, kMostTileQ = 256, kMostTileK = 256;

struct Candidate {
  std::string words;
  Change change;
};

// Tile sizes to try: `now` times powers of two, larger and smaller, up to `most`. The instruction's rows
// divide each. Smaller ones stay at or above kLeastTile, unless `now` already is below it.
std::vector<int64_t> sizes(int64_t now, int64_t most, int64_t instruction) {
  std::vector<int64_t> list{now};
  for (int64_t size = now; size % 2 == 0 && size / 2 >= std::min(now, kLeastTile);) {
    size /= 2;
    if (size % instruction == 0) list.push_back(size);
  }
  for (int64_t size = 2 * now; size <= most; size *= 2) {
    if (size % instruction == 0) list.push_back(size);
  }
  return list;
}

int64_t instruction_q(const KernelCase& kernel) {
  return kernel.instruction_q > 0 ? kernel.instruction_q : instruction_rows(kernel.unit);
}

std::vector<Candidate> cuts_of(const KernelCase& kernel) {
  std::vector<Candidate> list;
  if (!why_not_cut(kernel).empty()) return list;
  for (const int64_t q : sizes(kernel.tile_q, kMostTileQ, instruction_q(kernel))) {
    for (const int64_t k : sizes(kernel.tile_k, kMostTileK, instruction_rows(kernel.unit))) {
      std::string words;
      if (q != kernel.tile_q) words = fmt::format("tile_q={}", q);
      if (k != kernel.tile_k) words += fmt::format("{}tile_k={}", words.empty() ? "" : " ", k);
      if (!words.empty()) list.push_back({words, {.tile_q = q, .tile_k = k}});
    }
  }
  return list;
}

std::vector<Candidate> launch_changes_of(const KernelCase& kernel) {
  std::vector<Candidate> list;
  if (kernel.profiled) return list;  // its time leaves out launches
  if (kernel.launches > 1) list.push_back({"launches=1", {.launches = 1}});
  if (!kernel.replayed) list.push_back({"method=graph", {.replayed = true}});
  if (list.size() == 2) list.push_back({"launches=1 method=graph", {.launches = 1, .replayed = true}});
  return list;
}

// As many times the batch entries as fill one wave.
std::vector<Candidate> batches_of(const KernelCase& kernel, const Diagnosis& diagnosis,
                                  const Multiprocessors& machine) {
  const bool few = std::any_of(diagnosis.findings.begin(), diagnosis.findings.end(),
                               [](const Finding& f) { return f.cause == Cause::parallelism; });
  const double waves = occupancy_of(machine, kernel.use).waves;
  const auto times = waves > 1e-9 ? static_cast<int64_t>(1 / waves) : 0;
  if (!few || times < 2) return {};
  return {{fmt::format("batch={}", times * kernel.shape.batch), {.batch = times}}};
}

class Search {
 public:
  Search(const KernelCase& kernel, const Predictor& predictor, const CountChange& count)
      : kernel_(kernel), predictor_(predictor), count_(count) {}

  std::optional<NextStep> best(const std::vector<Candidate>& candidates) const {
    std::optional<NextStep> best;
    for (const Candidate& candidate : candidates) {
      const std::optional<NextStep> step = predicted(candidate);
      if (step && step->gain >= kWorthwhile && (!best || step->gain > best->gain)) best = step;
    }
    return best;
  }

 private:
  // Empty if the change cannot be made.
  std::optional<NextStep> predicted(const Candidate& candidate) const {
    try {
      const KernelCase asked = count_(kernel_, candidate.change);
      const Prediction p = predictor_.predict(asked, candidate.change.cuts() ? &kernel_ : nullptr);
      const double work = static_cast<double>(candidate.change.batch) * kernel_.seconds;
      return NextStep{candidate.words, work / p.seconds, work / p.high, work / p.low};
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  const KernelCase& kernel_;
  const Predictor& predictor_;
  const CountChange& count_;
};

}  // namespace

std::vector<NextStep> next_steps(const KernelCase& kernel, const Diagnosis& diagnosis,
                                 const Predictor& predictor, const Multiprocessors& machine,
                                 const CountChange& count) {
  const Search search(kernel, predictor, count);
  std::vector<NextStep> steps;
  for (const auto& candidates :
       {cuts_of(kernel), launch_changes_of(kernel), batches_of(kernel, diagnosis, machine)}) {
    if (const auto step = search.best(candidates)) steps.push_back(*step);
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const NextStep& a, const NextStep& b) { return a.gain > b.gain; });
  return steps;
}

const KernelCase* faster_rung(const KernelCase& kernel, const std::vector<KernelCase>& others) {
  const auto ladder_of = [](const KernelCase& k) {
    return k.implementation.substr(0, k.implementation.find('/'));
  };
  const KernelCase* fastest = nullptr;
  for (const KernelCase& other : others) {
    if (ladder_of(other) == ladder_of(kernel) && other.problem == kernel.problem &&
        kWorthwhile * other.seconds <= kernel.seconds &&
        (fastest == nullptr || other.seconds < fastest->seconds))
      fastest = &other;
  }
  return fastest;
}

}  // namespace splash::analysis
