// alpha-entmax of one row of scores: like softmax, but small scores get probability 0 exactly.

#include <cmath>
#include <cstdio>
#include <vector>

#include "cpu_ref/entmax/solver.h"

int main() {
  const std::vector<double> scores{1.0, 2.0, 3.0};
  const auto row = splash::cpu_ref::entmax(scores, /*alpha=*/1.5);
  double sum = 0;
  for (const double p : row.probabilities) {
    std::printf("%.4f ", p);
    sum += p;
  }
  std::printf(": %d of %zu keys are in the support\n", static_cast<int>(row.support), scores.size());
  return row.support == 2 && std::abs(sum - 1) < 1e-12 ? 0 : 1;
}
