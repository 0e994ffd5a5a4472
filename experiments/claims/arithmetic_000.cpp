// 000, the splash fix plan: 2048 keys, K_KEEP 8, three launches, 19.82 ms.

#include "analysis/counts.h"
#include "experiments/claims/arithmetic_parts.h"

namespace splash::experiments {
namespace {

constexpr double kKeys = 2048, kKeep = 8, kBlock = 64;
constexpr double kTime = 19.82, kSpeedup = 0.08;  // ms, and what the plan calls its speed-up over dense
constexpr double kLaunches = 5.0 + 5.0 + 8.0;     // ms, the plan's overhead of its three launches
constexpr double kFused = 0.1;                    // ms, the plan's overhead once fused
constexpr double kLaunchBound = 0.010;  // ms; a launch costs 2 to 10 microseconds on current systems

// Source 004's problem: B 2, H 8, N 1024, d 64, fp32. It is the only one whose memory the sources mention.
constexpr double kHeads = 2 * 8, kLength = 1024, kHeadDim = 64, kFloat = 4;
constexpr double kInputsAndOutput = 4 * kHeads * kLength * kHeadDim * kFloat;
constexpr double kScoresAndProbabilities = 2 * kHeads * kLength * kLength * kFloat;
constexpr double kKeptLists = kHeads * kLength * kKeep * (4 + kFloat);  // an index and a value per kept key

double block_percentage(double kept) {
  return 100 * analysis::sparsity(kept, kBlock);
}

}  // namespace

ClaimArithmetics arithmetic_of_splash_plan() {
  const double dense_time = kTime * kSpeedup;
  return {
      {"S0.1a", {100 * analysis::sparsity(kKeys * kKeep, kKeys * kKeys), "1 - 2048 x 8 / 2048^2"}},
      {"S0.1b", {kKeys * kKeys / 1e6, "2048^2 (query, key) pairs"}},
      {"S0.1c", {kKeys * kKeep / 1e3, "2048 x 8 pairs"}},
      {"S0.1d",
       {block_percentage(kKeep), "8 kept of each block of 64 keys, as the plan's own K_KEEP comment counts"}},
      {"S0.2a", {kLaunches, "5 + 5 + 8 ms"}},
      {"S0.2b", {3 * kLaunchBound, "3 launches x 0.010 ms, a high estimate for a launch"}},
      {"S0.2c", {kTime / (kTime - kLaunches + kFused), "19.82 / (19.82 - 18 + 0.1)"}},
      {"S0.3a",
       {1.0,
        "one launch a kernel before, one after; 2048 / 32 = 64 query blocks a head become 2048 / 128 = 16"}},
      {"S0.6a", {block_percentage(8), "1 - 8 / 64"}},
      {"S0.6b", {block_percentage(4), "1 - 4 / 64"}},
      {"S0.6c", {block_percentage(2), "1 - 2 / 64"}},
      {"S0.7a", {dense_time / 0.10, "19.82 ms x 0.08 = 1.59 ms for dense; 1.59 / 0.10"}},
      {"S0.7b", {dense_time / 0.50, "19.82 ms x 0.08 = 1.59 ms for dense; 1.59 / 0.50"}},
      {"S0.7c", {1 / kSpeedup, "1 / 0.08"}},
      {"S0.8a",
       {100 * (kInputsAndOutput + kKeptLists) / (kInputsAndOutput + kScoresAndProbabilities),
        "counted, B 2 H 8 N 1024 d 64 fp32: Q, K, V, O 16.8 MB + kept lists 1.0 MB, over Q, K, V, O + scores "
        "and "
        "probabilities 134 MB"}},
      {"S0.8b",
       {100 * (kInputsAndOutput + kKeptLists) / kInputsAndOutput,
        "counted, B 2 H 8 N 1024 d 64 fp32: Q, K, V, O 16.8 MB + kept lists 1.0 MB, over Q, K, V, O alone"}},
  };
}

}  // namespace splash::experiments
