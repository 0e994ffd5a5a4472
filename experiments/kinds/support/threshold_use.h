#pragma once
// Uses of predicted thresholds (source 004) besides a solver's start: keys need not be listed, and blocks
// need not be computed.

#include "core/workload.h"
#include "experiments/kinds/support/threshold_training.h"

namespace splash::experiments {

// Pairs per row that screened attention (cpu_ref/attention/screened.h) lists: without predictions, with the
// predictor's, and with the exact thresholds. The predictor's are lowered until only a twentieth of the
// training rows have one above tau.
struct ListedPairs {
  double cold = 0, warm = 0, perfect = 0;
  double misled = 0;  // share of the rows that the predictor misleads; they are computed twice
};
ListedPairs listed_pairs(const AttentionSpec& spec, const AttentionInputs<double>& inputs,
                         const cpu_ref::ThresholdPredictor& predictor,
                         const std::vector<ThresholdSample>& training,
                         const std::vector<ThresholdSample>& rows);

// Leaves out the blocks of 64 queries and 64 keys in which no score exceeds its row's predicted threshold.
// The source calls this skipping; it is approximate.
struct SkippedBlocks {
  double share = 0;  // blocks left out / blocks with a visible pair
  double empty = 0;  // blocks without p > 0, which lose nothing, / the same
  double nmse = 0;   // entmax over the remaining keys against entmax over all keys, on the `judged` rows
};
SkippedBlocks skipped_blocks(const AttentionSpec& spec, const AttentionInputs<double>& inputs,
                             const cpu_ref::ThresholdPredictor& predictor,
                             const std::vector<ThresholdSample>& rows,
                             const std::vector<ThresholdSample>& judged, const Tensor<double>& exact);

}  // namespace splash::experiments
