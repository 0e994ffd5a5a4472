#include "experiments/kinds/support/reference.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "analysis/counts.h"
#include "analysis/statistics.h"
#include "experiments/kinds/support/lru_cache.h"

namespace splash::experiments {
namespace {

using cpu_ref::BlockMap;
using cpu_ref::ForwardResult;

int64_t bytes_of_result(const ForwardResult<double>& result) {
  int64_t bytes = 8 * (result.out.size() + static_cast<int64_t>(result.tau.size() + result.support.size()));
  if (result.probabilities) bytes += 12 * static_cast<int64_t>(result.probabilities->values.size());
  return bytes;
}

std::string mask_key(const Parameters& p) {
  return get_flag(p, "causal") ? " causal" : "";
}

ForwardResult<double> forward(const Parameters& p, const Normalizer& normalizer,
                              const cpu_ref::ForwardOptions& options) {
  const auto inputs = load_inputs(p);
  AttentionSpec spec = input_spec(p, *inputs);
  spec.normalizer = normalizer;
  return cpu_ref::attention_forward<double>(spec, inputs->q, inputs->k, inputs->v, options);
}

}  // namespace

cpu_ref::Solver exact_solver(double alpha) {
  return alpha <= 2 ? cpu_ref::Solver::newton : cpu_ref::Solver::halley_bisection;
}

cpu_ref::ForwardOptions exact_options(double alpha) {
  return {.solver = exact_solver(alpha), .map_block = 64, .keep_probabilities = true};
}

// TOML does not promise an order of axes, so the cache can hold all 72 captured heads at one alpha.
std::shared_ptr<const ForwardResult<double>> exact_entmax(const Parameters& p) {
  static LruCache<ForwardResult<double>> cache(int64_t{256} << 20);
  const double alpha = get_number(p, "alpha");
  const auto make = [&] { return forward(p, {NormalizerKind::entmax, {alpha}}, exact_options(alpha)); };
  return cache.get(fmt::format("{}{} {}", input_key(p), mask_key(p), alpha), make, bytes_of_result);
}

std::shared_ptr<const ForwardResult<double>> dense_softmax(const Parameters& p) {
  static LruCache<ForwardResult<double>> cache(int64_t{64} << 20);
  const auto make = [&] { return forward(p, {NormalizerKind::softmax, {}}, {}); };
  return cache.get(input_key(p) + mask_key(p), make, bytes_of_result);
}

double cosine(std::span<const double> a, std::span<const double> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

std::vector<double> quantiles(std::vector<double> samples) {
  std::vector<double> result;
  for (const double level : kQuantileLevels) result.push_back(analysis::quantile(samples, level));
  return result;
}

std::vector<report::ColumnInfo> sparsity_columns() {
  return {
      {.name = "token_sparsity",
       .units = "1",
       .long_name = "share of visible pairs with probability 0",
       .formula = "1 - nnz / visible pairs"},
      {.name = "block_sparsity_64",
       .units = "1",
       .long_name = "share of visible 64 x 64 tiles that are wholly 0",
       .formula = "1 - active / visible tiles"},
      {.name = "block_sparsity_128",
       .units = "1",
       .long_name = "share of visible 128 x 128 tiles that are wholly 0",
       .formula = "1 - active / visible tiles"},
      {.name = "support_mean",
       .units = "1",
       .long_name = "keys with p > 0, mean over rows",
       .formula = "sum of supports / rows"},
      {.name = "support_max",
       .units = "1",
       .long_name = "keys with p > 0, largest over rows",
       .formula = "max of supports"},
      {.name = "support_quantile",
       .units = "1",
       .long_name = "quantiles over rows of the keys with p > 0",
       .formula = kQuantileText,
       .dimension = "quantile"},
      {.name = "zero_rows",
       .units = "1",
       .long_name = "share of rows without any probability",
       .formula = "rows with support 0 / rows"},
      {.name = "visible_pairs",
       .units = "1",
       .long_name = "visible (query, key) pairs",
       .formula = "sum over queries of the keys that the mask shows"},
  };
}

void fill_sparsity(const AttentionSpec& spec, std::span<const int64_t> support, const BlockMap& blocks_64,
                   CaseResult& result) {
  std::vector<double> sizes(support.begin(), support.end());
  double total = 0;
  for (const double size : sizes) total += size;
  const double rows = static_cast<double>(sizes.size());
  const auto pairs = static_cast<double>(visible_pairs(spec.shape, spec.mask));
  result.numbers["token_sparsity"] = analysis::sparsity(total, pairs);
  result.numbers["block_sparsity_64"] = block_sparsity(blocks_64);
  result.numbers["block_sparsity_128"] = block_sparsity(coarsen(blocks_64));
  result.numbers["support_mean"] = total / rows;
  result.numbers["support_max"] = *std::ranges::max_element(sizes);
  result.numbers["zero_rows"] = static_cast<double>(std::ranges::count(sizes, 0.0)) / rows;
  result.numbers["visible_pairs"] = pairs;
  result.vectors["support_quantile"] = quantiles(std::move(sizes));
}

double block_sparsity(const BlockMap& map) {
  const int64_t active = map.count(BlockMap::active);
  return analysis::sparsity(active, active + map.count(BlockMap::inactive));
}

BlockMap coarsen(const BlockMap& map) {
  BlockMap coarse;
  coarse.block = 2 * map.block;
  coarse.q_blocks = (map.q_blocks + 1) / 2;
  coarse.k_blocks = (map.k_blocks + 1) / 2;
  const int64_t tiles = map.q_blocks * map.k_blocks;
  const int64_t heads = tiles > 0 ? static_cast<int64_t>(map.state.size()) / tiles : 0;
  coarse.state.assign(heads * coarse.q_blocks * coarse.k_blocks, BlockMap::hidden);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < map.q_blocks; ++i) {
      for (int64_t j = 0; j < map.k_blocks; ++j) {
        uint8_t& state = coarse.state[(h * coarse.q_blocks + i / 2) * coarse.k_blocks + j / 2];
        state = std::max(state, map.state[h * tiles + i * map.k_blocks + j]);  // hidden < inactive < active
      }
    }
  }
  return coarse;
}

}  // namespace splash::experiments
