// Measures the sparsity of exact entmax attention: support and all-zero tiles, by input, alpha and length.

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/round.h"
#include "cpu_ref/attention/screened.h"
#include "experiments/kinds/support/reference.h"

namespace splash::experiments {
namespace {

using cpu_ref::BlockMap;

// Marks the tiles of `block` keys and queries that hold a visible pair, and those that hold a support entry.
BlockMap map_of(const AttentionSpec& spec, const cpu_ref::SparseProbabilities<float>& p, int64_t block) {
  BlockMap map;
  map.block = block;
  map.q_blocks = ceil_div(spec.shape.q_len, block);
  map.k_blocks = ceil_div(spec.shape.kv_len, block);
  map.state.assign(spec.shape.batch * spec.shape.q_heads * map.q_blocks * map.k_blocks, BlockMap::hidden);
  for (int64_t r = 0; r < spec.shape.rows(); ++r) {
    const int64_t query = r % spec.shape.q_len, head = r / spec.shape.q_len;
    uint8_t* tiles = &map.state[(head * map.q_blocks + query / block) * map.k_blocks];
    const RowMask mask = spec.mask.row(spec.shape, 0, 0, query);  // without positions: a range of keys
    for (int64_t j = mask.begin / block; j * block < mask.end; ++j)
      tiles[j] = std::max<uint8_t>(tiles[j], BlockMap::inactive);
    for (int64_t i = p.row_offsets[r]; i < p.row_offsets[r + 1]; ++i)
      tiles[p.columns[i] / block] = BlockMap::active;
  }
  return map;
}

class WorkloadSparsity : public HeadKind {
 public:
  std::string name() const override { return "workload"; }
  std::string summary() const override {
    return "support and tile sparsity of entmax attention, captured and synthetic";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    auto list = input_parameters();
    list.push_back({"alpha", number, 1.5, "1", "entmax's alpha", {}});
    list.push_back({"k_keep", integer, int64_t{0}, "1", "keys kept a row; 0: all", {}});
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    auto list = sparsity_columns();
    list.push_back({.name = "block_density_64",
                    .units = "1",
                    .long_name = "share of visible 64 x 64 tiles in use",
                    .formula = "1 - block_sparsity_64"});
    list.push_back({.name = "block_density_128",
                    .units = "1",
                    .long_name = "share of visible 128 x 128 tiles in use",
                    .formula = "1 - block_sparsity_128"});
    return list;
  }

  void check(const Parameters& p) const override {
    HeadKind::check(p);
    Normalizer{NormalizerKind::entmax, {get_number(p, "alpha")}}.validate({});
    if (get_integer(p, "k_keep") < 0) throw InvalidArgument("k_keep must be 0 (all keys) or more");
  }

  // Runs the screened forward in float32, so that long sequences cost only one product. The supports are
  // exact for the scores in float32.
  CaseResult evaluate(const Parameters& p) const override {
    const auto loaded = load_inputs(p);
    const auto inputs = loaded->cast<float>();
    AttentionSpec spec = input_spec(p, *loaded);
    spec.normalizer = {NormalizerKind::entmax, {get_number(p, "alpha")}};
    if (const int64_t k_keep = get_integer(p, "k_keep"); k_keep > 0) {
      spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
    }
    const auto forward = cpu_ref::screened_forward(spec, inputs.q, inputs.k, inputs.v, true);
    CaseResult result;
    fill_sparsity(spec, forward.support, map_of(spec, forward.probabilities, 64), result);
    result.numbers["block_density_64"] = 1 - result.numbers["block_sparsity_64"];
    result.numbers["block_density_128"] = 1 - result.numbers["block_sparsity_128"];
    return result;
  }
};

const WorkloadSparsity kWorkloadSparsity;
const KindRegistration kWorkloadSparsityRegistration(kWorkloadSparsity);

}  // namespace
}  // namespace splash::experiments
