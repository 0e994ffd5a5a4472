#include "experiments/kinds/support/threshold_use.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/error_metrics.h"
#include "core/round.h"
#include "cpu_ref/attention/row.h"
#include "cpu_ref/attention/screened.h"
#include "cpu_ref/entmax/rows.h"

namespace splash::experiments {
namespace {

constexpr int64_t kBlock = 64;
constexpr double kMisledShare = 0.05;  // share of the training rows

// The amount by which tau_hat exceeds tau at most, in all but kMisledShare of the rows.
double shortfall(const std::vector<ThresholdSample>& rows, const cpu_ref::ThresholdPredictor& predictor) {
  std::vector<double> of_rows;
  for (const ThresholdSample& row : rows) of_rows.push_back(predicted_offset(row, predictor) - row.offset);
  if (of_rows.empty()) return 0;
  const auto place = static_cast<int64_t>(static_cast<double>(of_rows.size() - 1) * (1 - kMisledShare));
  std::nth_element(of_rows.begin(), of_rows.begin() + place, of_rows.end());
  return of_rows[static_cast<size_t>(place)];
}

}  // namespace

ListedPairs listed_pairs(const AttentionSpec& spec, const AttentionInputs<double>& inputs,
                         const cpu_ref::ThresholdPredictor& predictor,
                         const std::vector<ThresholdSample>& training,
                         const std::vector<ThresholdSample>& rows) {
  const auto narrow = inputs.cast<float>();
  const auto count = static_cast<double>(std::max<size_t>(rows.size(), 1));
  const auto run = [&](const std::vector<float>& peaks) {
    return cpu_ref::screened_forward(spec, narrow.q, narrow.k, narrow.v, false, peaks);
  };
  std::vector<float> warm(static_cast<size_t>(spec.shape.rows()), 1.0f), perfect = warm;
  const double margin = shortfall(training, predictor);
  constexpr double kRounding = 1e-5;  // of float scores; keeps the exact threshold from misleading
  for (const ThresholdSample& row : rows) {
    warm[static_cast<size_t>(row.row)] = static_cast<float>(margin - predicted_offset(row, predictor));
    perfect[static_cast<size_t>(row.row)] = static_cast<float>(kRounding - row.offset);
  }
  const auto led = run(warm);
  return {.cold = static_cast<double>(run({}).listed) / count,
          .warm = static_cast<double>(led.listed) / count,
          .perfect = static_cast<double>(run(perfect).listed) / count,
          .misled = static_cast<double>(led.misled_rows) / count};
}

SkippedBlocks skipped_blocks(const AttentionSpec& spec, const AttentionInputs<double>& inputs,
                             const cpu_ref::ThresholdPredictor& predictor,
                             const std::vector<ThresholdSample>& rows,
                             const std::vector<ThresholdSample>& judged, const Tensor<double>& exact) {
  const AttentionShape& s = spec.shape;
  const double to_z = spec.normalizer.alpha[0] - 1;
  const int64_t key_blocks = ceil_div(s.kv_len, kBlock), query_blocks = ceil_div(s.q_len, kBlock);
  enum : uint8_t { hidden = 0, seen = 1, above_predicted = 2, above_tau = 4 };
  std::vector<uint8_t> blocks(static_cast<size_t>(query_blocks * key_blocks), hidden);
  cpu_ref::RowScorer<double> score(spec, inputs.q, inputs.k);
  cpu_ref::Row<double> row;
  const auto read = [&](int64_t r) {
    const auto at = cpu_ref::row_address(s, r);
    score(at, spec.mask.row(s, at.batch, at.q_head, at.query), row);
    return at;
  };
  const auto block_of = [&](const cpu_ref::RowAddress& at, int64_t key) -> uint8_t& {
    return blocks[static_cast<size_t>(at.query / kBlock * key_blocks + key / kBlock)];
  };
  for (const ThresholdSample& sample : rows) {
    const auto at = read(sample.row);
    const double largest = to_z * *std::max_element(row.scores.begin(), row.scores.end());
    const double predicted = largest + predicted_offset(sample, predictor), tau = largest + sample.offset;
    for (int64_t j = 0; j < row.size(); ++j) {
      const double z = to_z * row.scores[static_cast<size_t>(j)];
      block_of(at, row.keys[static_cast<size_t>(j)]) |=
          static_cast<uint8_t>(seen | (z > predicted ? above_predicted : 0) | (z > tau ? above_tau : 0));
    }
  }
  const auto share_of = [&](uint8_t bit) {
    int64_t visible = 0, without = 0;
    for (const uint8_t block : blocks) {
      visible += (block & seen) != 0 ? 1 : 0;
      without += (block & seen) != 0 && (block & bit) == 0 ? 1 : 0;
    }
    return visible == 0 ? 0 : static_cast<double>(without) / static_cast<double>(visible);
  };

  std::vector<double> out, reference;
  for (const ThresholdSample& sample : judged) {
    const auto at = read(sample.row);
    for (int64_t j = 0; j < row.size(); ++j) {
      if ((block_of(at, row.keys[static_cast<size_t>(j)]) & above_predicted) == 0)
        row.scores[static_cast<size_t>(j)] = -std::numeric_limits<double>::infinity();
    }
    std::vector<double> p(row.scores.size());
    cpu_ref::entmax_rows<double>(row.scores, spec.normalizer.alpha, 1, p);
    std::vector<double> of_row(static_cast<size_t>(s.head_dim), 0.0);
    for (int64_t j = 0; j < row.size(); ++j) {
      const double* value = inputs.v.row(at.batch, s.kv_head_of(at.q_head), row.keys[static_cast<size_t>(j)]);
      for (size_t d = 0; d < of_row.size(); ++d) of_row[d] += p[static_cast<size_t>(j)] * value[d];
    }
    out.insert(out.end(), of_row.begin(), of_row.end());
    const double* whole = exact.row(at.batch, at.q_head, at.query);
    reference.insert(reference.end(), whole, whole + s.head_dim);
  }
  return {.share = share_of(above_predicted),
          .empty = share_of(above_tau),
          .nmse = analysis::compare_arrays(out, reference).nmse};
}

}  // namespace splash::experiments
