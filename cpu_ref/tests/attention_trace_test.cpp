// The traces of the CPU's implementations against counts written out here.

#include <set>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/touched_bytes.h"
#include "core/workload.h"
#include "cpu_ref/attention/screened.h"
#include "cpu_ref/attention/screening/blocks.h"
#include "cpu_ref/attention/trace.h"

namespace splash::cpu_ref {
namespace {

struct TracedWork {
  double flops = 0;
  int64_t read_values = 0;  // bytes of V, each read counted
  TouchedBytes touched;
};

TracedWork work_of(const std::vector<KernelTrace>& parts) {
  TracedWork work;
  BlockTrace trace;
  for (const KernelTrace& part : parts) {
    for (int64_t piece = 0; piece < part.blocks; ++piece) {
      trace.clear();
      part.run(piece, trace);
      work.flops += trace.flops();
      work.touched.add(trace);
      for (const auto& range : trace.ranges()) {
        if (range.operand == Operand::v) work.read_values += range.bytes * range.rows;
      }
    }
  }
  return work;
}

// Two query heads per key head, causal, with lengths that fill no tile.
struct TracedProblem {
  AttentionSpec spec;
  SparseProbabilities<float> support;
  int64_t entries = 0, keys_used = 0;  // keys_used: keys that some row of their head's group weighs
  double visible = 0;                  // pairs

  TracedProblem() {
    spec.shape = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 83, .kv_len = 301, .head_dim = 24};
    spec.mask.causal = true;
    const auto in = make_inputs<float>({.seed = 3, .query_variance = 4}, spec.shape);
    support = screened_forward(spec, in.q, in.k, in.v, true).probabilities;
    entries = static_cast<int64_t>(support.columns.size());
    std::set<std::pair<int64_t, int32_t>> used;
    for (int64_t row = 0; row < spec.shape.rows(); ++row) {
      const int64_t group = row / (2 * spec.shape.q_len);
      for (int64_t n = support.row_offsets[row]; n < support.row_offsets[row + 1]; ++n)
        used.emplace(group, support.columns[n]);
    }
    keys_used = static_cast<int64_t>(used.size());
    visible = static_cast<double>(visible_pairs(spec.shape, spec.mask));
  }
  int64_t row_bytes() const { return 4 * spec.shape.head_dim; }
  int64_t q_bytes() const { return row_bytes() * spec.shape.rows(); }
  int64_t k_bytes() const { return row_bytes() * spec.shape.batch * spec.shape.kv_heads * spec.shape.kv_len; }
};

}  // namespace

TEST_CASE("the plain reference multiplies visible pairs and the support, and no more") {
  const TracedProblem x;
  const double d = 24, pair = 2 * d, entry = pair * static_cast<double>(x.entries);
  const TracedWork forward = work_of(reference_trace(x.spec, x.support, false));
  CHECK(forward.flops == pair * x.visible + entry);
  CHECK(forward.read_values == x.row_bytes() * x.entries);
  CHECK(forward.touched.of(Operand::v) == x.row_bytes() * x.keys_used);
  CHECK(forward.touched.of(Operand::q) == x.q_bytes());
  CHECK(forward.touched.of(Operand::k) == x.k_bytes());
  CHECK(forward.touched.of(Operand::out) == x.q_bytes());
  CHECK(forward.touched.of(Operand::d_q) == 0);
  const TracedWork both = work_of(reference_trace(x.spec, x.support, true));
  CHECK(both.flops == 2 * pair * x.visible + 5 * entry);    // scores again, then dP, dV, dQ and dK
  CHECK(both.touched.of(Operand::d_q) == 2 * x.q_bytes());  // in double
  CHECK(both.touched.of(Operand::d_k) == 2 * x.row_bytes() * x.keys_used);
}

TEST_CASE("screening multiplies whole tiles over visible panels, and backward walks the support alone") {
  using namespace screening;
  const TracedProblem x;
  const double d = 24, pair = 2 * d, entry = pair * static_cast<double>(x.entries);
  double tiles = 0;  // (query tile, panel) pairs that some query of the block sees
  for (int64_t first = 0; first < 83; first += kBlockRows) {
    const int64_t last = std::min<int64_t>(first + kBlockRows, 83), rows = last - first;
    const int64_t panels = (last + 301 - 83 + kPanelKeys - 1) / kPanelKeys;
    tiles += static_cast<double>((rows + kTileRows - 1) / kTileRows * panels);
  }
  const TracedWork forward = work_of(screened_trace(x.spec, x.support, false));
  CHECK(forward.flops == 8 * tiles * pair * kTileRows * kPanelKeys + entry);  // 8 heads
  CHECK(forward.flops > pair * x.visible);
  CHECK(forward.touched.of(Operand::v) == x.row_bytes() * x.keys_used);
  CHECK(forward.touched.of(Operand::k) == x.k_bytes());
  CHECK(forward.touched.of(Operand::out) == x.q_bytes());
  const int64_t panels = (301 + kPanelKeys - 1) / kPanelKeys;
  CHECK(forward.touched.of(Operand::workspace) == 4 * panels * kPanelKeys * x.row_bytes());
  const TracedWork both = work_of(screened_trace(x.spec, x.support, true));
  CHECK(both.flops == doctest::Approx(forward.flops + 4 * entry).epsilon(1e-12));
  CHECK(both.touched.of(Operand::d_q) == x.q_bytes());
  CHECK(both.touched.of(Operand::d_k) == x.k_bytes());
  CHECK(both.touched.of(Operand::d_v) == x.k_bytes());
  CHECK(both.touched.of(Operand::d_out) == x.q_bytes());
}

TEST_CASE("a support of other rows is refused") {
  TracedProblem x;
  x.support.row_offsets.pop_back();
  CHECK_THROWS_WITH_AS(screened_trace(x.spec, x.support, true),
                       "the support has 663 rows; the problem has 664", InvalidArgument);
  CHECK_THROWS_AS(reference_trace(x.spec, x.support, false), InvalidArgument);
}

}  // namespace splash::cpu_ref
