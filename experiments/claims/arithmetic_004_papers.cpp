// 004, adaptive splash attention: what counts as an operation. The papers: numbers from their own tables.

#include <algorithm>

#include "analysis/counts.h"
#include "experiments/claims/arithmetic_parts.h"

namespace splash::experiments {
namespace {

constexpr double kKeys = 2048, kKeep = 8;

// The share of dense FLOPs that is left if every score is computed, as the selection needs, and only kept
// values are summed.
constexpr double kScoredShare = (kKeys + kKeep) / (2 * kKeys);

// Kascade (2512.16391), prefill at 128k, ms: an anchor layer, a reusing layer, and the mean over all layers.
constexpr double kAnchor = 416.5, kReuse = 37.2, kWhole = 98.6;
constexpr double kAnchorLayers = (kWhole - kReuse) / (kAnchor - kReuse);

// AdaSplash-2 (2604.15180), forward + backward: block sparsity in %, FA2 CUDA and AdaSplash-2 in ms.
struct Row {
  double sparsity, fa2, adasplash2;
};
constexpr Row kTable[] = {{51, 3.1, 3.3}, {58, 11, 11},   {64, 42, 41},
                          {70, 160, 142}, {75, 583, 461}, {85, 2400, 1500}};

double first_faster() {
  return std::ranges::find_if(kTable, [](const Row& row) { return row.fa2 > row.adasplash2; })->sparsity;
}

}  // namespace

ClaimArithmetics arithmetic_of_adaptive_splash() {
  return {
      {"S4.1a", {100 * analysis::sparsity(kKeys * kKeep, kKeys * kKeys), "1 - 8 / 2048"}},
      {"S4.1e",
       {100 * (1 - kScoredShare), "1 - (2048 scores + 8 values) / (2048 scores + 2048 values) a query"}},
      {"S4.4a",
       {kKeys * kKeys / 1e6, "2048^2 pairs of one head; the README's own N 1024 gives 1.05 M a head"}},
      {"S4.4b", {kKeys * (kKeys + 1) / 2 / 1e6, "2048 x 2049 / 2 pairs: nothing but the causal half"}},
      {"S4.4c", {kKeys * kKeep / 1e3, "2048 x 8 pairs"}},
      {"S4.4d",
       {kKeys * kKeys * kScoredShare / 1e3,
        "2048 x (2048 scores + 8 values) / 2: choosing 8 keys needs all scores"}},
  };
}

ClaimArithmetics arithmetic_of_papers() {
  return {
      {"P2.2a",
       {first_faster(), "the first row of the paper's table where FA2 CUDA takes longer (42 ms against 41)"}},
      {"P3.1", {11.68 / 2.83, "11.68 / 2.83 ms"}},
      {"P3.2", {215.8 / 98.6, "215.8 / 98.6 ms"}},
      {"P3.3",
       {100 * kAnchorLayers * kAnchor / kWhole,
        "anchor layers' share a of all layers from a x 416.5 + (1 - a) x 37.2 = 98.6 ms, a = 0.162; a x "
        "416.5 / 98.6"}},
  };
}

}  // namespace splash::experiments
