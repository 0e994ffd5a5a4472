// The search of `splash tune kernels` on a simulated clock, with candidates whose times are drawn.

#include <cmath>
#include <limits>
#include <random>

#include <doctest/doctest.h>

#include "core/error.h"
#include "experiments/tuning/flagship.h"
#include "experiments/tuning/search.h"

using namespace splash;
using namespace splash::experiments;

namespace {

// A GPU on which only sampling takes time. Each sample is off by some per cent, and the common clock drifts.
struct FakeGpu {
  explicit FakeGpu(uint64_t seed) : random(seed) {}

  Candidate candidate(const std::string& name, double seconds) {
    return {name, [this, seconds] {
              const double drift = 1 + 0.2 * std::sin(time / 3);
              const double sample =
                  seconds * drift * std::exp(std::normal_distribution<double>(0, noise)(random));
              time += sample;
              ++samples;
              return sample;
            }};
  }
  SearchLimits limits(double budget) {
    return {.budget_seconds = budget, .now = [this] { return time; }};
  }

  std::mt19937_64 random;
  double time = 0, noise = 0.03;
  int samples = 0;
};

}  // namespace

TEST_CASE("the search finds the quickest of noisy candidates") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FakeGpu gpu(seed);
    std::vector<Candidate> candidates{gpu.candidate("default", 0.010)};
    for (int i = 0; i < 6; ++i) candidates.push_back(gpu.candidate(std::to_string(i), 0.0105 + 0.001 * i));
    candidates.push_back(gpu.candidate("quickest", 0.0085));
    const SearchResult result = search(candidates, gpu.limits(30));
    CAPTURE(seed);
    CHECK(result.candidates.at(result.best).name == "quickest");
    CHECK(!result.ran_out);
    const CandidateResult& best = result.candidates.back();
    CHECK(best.difference == BesideDefault::faster);
    CHECK(best.ratio == doctest::Approx(0.85).epsilon(0.05));
    CHECK(best.ratio_interval.low < 0.86);
    CHECK(best.ratio_interval.high > 0.84);
    CHECK(best.seconds.size() > result.candidates[6].seconds.size());  // halving: the best gets most samples
  }
}

TEST_CASE("the search keeps the default where nothing is quicker beyond the noise") {
  int switched = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    FakeGpu gpu(seed);
    std::vector<Candidate> candidates;
    for (const char* name : {"default", "a", "b", "c", "d"}) candidates.push_back(gpu.candidate(name, 0.01));
    const SearchResult result = search(candidates, gpu.limits(30));
    switched += result.best != 0 ? 1 : 0;
    for (const CandidateResult& candidate : result.candidates)
      CHECK(candidate.ratio == doctest::Approx(1).epsilon(0.08));
  }
  CHECK(switched <=
        3);  // a true interval at 99 % lies on one side of 1 in one of 200, and 1 % must be gained
}

TEST_CASE("the search does not take a gain below the least that counts") {
  FakeGpu gpu(7);
  gpu.noise = 1e-4;
  const SearchResult result =
      search({gpu.candidate("default", 0.01), gpu.candidate("a", 0.00995)}, gpu.limits(30));
  CHECK(result.best == 0);
  CHECK(result.candidates[1].difference == BesideDefault::within_noise);
  CHECK(result.candidates[1].ratio == doctest::Approx(0.995).epsilon(0.001));
}

TEST_CASE("the search stops at its budget and then decides nothing it cannot") {
  FakeGpu gpu(3);
  std::vector<Candidate> candidates{gpu.candidate("default", 1)};
  for (int i = 0; i < 7; ++i) candidates.push_back(gpu.candidate(std::to_string(i), 0.5));
  const SearchResult result = search(candidates, gpu.limits(5));
  CHECK(result.ran_out);
  CHECK(result.best == 0);
  CHECK(gpu.samples == 16);  // one unrecorded and one recorded of each, which took the budget
  for (const CandidateResult& candidate : result.candidates) CHECK(candidate.seconds.size() == 1);
  CHECK(result.candidates[1].difference == BesideDefault::too_few);

  FakeGpu longer(4);
  std::vector<Candidate> few{longer.candidate("default", 0.1), longer.candidate("a", 0.1),
                             longer.candidate("b", 0.1)};
  CHECK(search(few, longer.limits(2)).ran_out);
  CHECK(longer.time < 2.5);
}

TEST_CASE("the search of a default alone has it, and refuses what it cannot search") {
  FakeGpu gpu(5);
  const SearchResult alone = search({gpu.candidate("default", 0.01)}, gpu.limits(1));
  CHECK(alone.best == 0);
  CHECK(!alone.ran_out);
  CHECK_THROWS_AS(search({}, gpu.limits(1)), InvalidArgument);
  CHECK_THROWS_AS(search({gpu.candidate("default", 0.01)}, gpu.limits(0)), InvalidArgument);
  CHECK_THROWS_AS(search({gpu.candidate("default", 0.01)}, gpu.limits(NAN)), InvalidArgument);
  const Candidate broken{"broken", [] { return std::numeric_limits<double>::quiet_NaN(); }};
  CHECK_THROWS_WITH_AS(search({broken}, gpu.limits(1)), doctest::Contains("a call of broken took nan"),
                       InvalidArgument);
}

TEST_CASE("of a knob those values are tried that change something for the problem") {
  using gpu::entmax::Tuning;
  AttentionSpec spec;
  spec.shape = {1, 4, 4, 3000, 3000, 64};
  spec.normalizer.alpha = {1.5};
  const auto values = [&](const std::string& name, int capability, const Tuning& holds) {
    std::vector<int> values;
    for (const gpu::entmax::Knob& knob : gpu::entmax::knobs()) {
      if (knob.name != name) continue;
      for (const Tuning& tuning : tunings_of(knob, holds, spec, Dtype::bf16, capability))
        values.push_back(tuning.*knob.value);
    }
    return values;
  };
  CHECK(values("portable", 90, {}) == std::vector{0, 1});
  CHECK(values("portable", 80, {}) == std::vector{0});
  CHECK(values("sampled_keys", 90, {}) == std::vector{4096, 512, 1024, 2048});  // more would be all keys, too
  CHECK(values("sampled_keys", 80, {}) == std::vector{4096});
  CHECK(values("sampled_keys", 90, {.portable = 1}) == std::vector{4096});
  CHECK(values("heads_together", 90, {}) == std::vector{0, 1, 2});  // there are 4 heads, and the rule says 8
  CHECK(values("heads_together", 90, {.heads_together = 2}) == std::vector{2, 0, 1});
  CHECK(values("long_parts", 80, {}).size() == 5);
  CHECK(values("long_parts", 80, {}).front() == 512);
}
