#pragma once
// Uses of predicted thresholds (source 004) beyond a solver's start: keys that need not be listed, blocks
// that need not be computed.

#include "core/workload.h"
#include "experiments/kinds/support/threshold_training.h"

namespace splash::experiments {

// Pairs a row that screened attention (cpu_ref/attention/screened.h) lists: without predictions, with those
// of the predictor, with the exact thresholds. The predictor's are lowered until they lie above tau in a
// twentieth of the training rows.
struct ListedPairs {
  double cold = 0, warm = 0, perfect = 0;
  double misled = 0;  // share of the rows that the predictor misleads: they are done twice
};
ListedPairs listed_pairs(const AttentionSpec& spec, const AttentionInputs<double>& inputs,
                         const cpu_ref::ThresholdPredictor& predictor,
                         const std::vector<ThresholdSample>& training,
                         const std::vector<ThresholdSample>& rows);

// Blocks of 64 queries and 64 keys none of whose scores exceeds its row's predicted threshold, left out: what
// the source calls skipping, which is approximate.
struct SkippedBlocks {
  double share = 0;  // of the blocks with a visible pair
  double empty = 0;  // of them, those without p > 0: what can be left out without loss
  double nmse = 0;   // of entmax over what is left, against that over all keys; of `judged` rows
};
SkippedBlocks skipped_blocks(const AttentionSpec& spec, const AttentionInputs<double>& inputs,
                             const cpu_ref::ThresholdPredictor& predictor,
                             const std::vector<ThresholdSample>& rows,
                             const std::vector<ThresholdSample>& judged, const Tensor<double>& exact);

}  // namespace splash::experiments
