#include "cpu_ref/attention/screened.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "core/parallel.h"
#include "core/round.h"
#include "cpu_ref/attention/blocked_sum.h"
#include "cpu_ref/attention/given_threshold.h"
#include "cpu_ref/attention/screening/bias.h"
#include "cpu_ref/attention/screening/blocks.h"
#include "cpu_ref/attention/screening/candidates.h"
#include "cpu_ref/attention/screening/packed_keys.h"
#include "cpu_ref/attention/screening/tile.h"

namespace splash::cpu_ref {
namespace {

using namespace screening;

void check(const AttentionSpec& spec, const TensorView<const float>& q, const TensorView<const float>& k,
           const TensorView<const float>& v) {
  spec.validate();
  const AttentionShape& s = spec.shape;
  require_extents("q", q, s.batch, s.q_heads, s.q_len, s.head_dim);
  require_extents("k", k, s.batch, s.kv_heads, s.kv_len, s.head_dim);
  require_extents("v", v, s.batch, s.kv_heads, s.kv_len, s.head_dim);
  if (spec.normalizer.kind != NormalizerKind::entmax) {
    throw Unsupported(fmt::format("screened attention takes entmax only, not {}; attention_forward takes all",
                                  to_string(spec.normalizer.kind)));
  }
  if (spec.selection.kind != SelectionKind::all && spec.selection.kind != SelectionKind::top_k_row) {
    throw Unsupported(
        fmt::format("screened attention takes the selections all and top_k_row, not {}; "
                    "attention_forward takes all four",
                    to_string(spec.selection.kind)));
  }
}

// One thread's memory, which it reuses from block to block.
struct Workspace {
  explicit Workspace(int64_t head_dim) : out(head_dim) {}

  std::vector<float> q;  // [tile, head_dim, kTileRows], times the sign of the scale
  std::vector<Candidates> rows = std::vector<Candidates>(kBlockRows);
  std::vector<RowMask> masks = std::vector<RowMask>(kBlockRows);
  std::vector<double> tau = std::vector<double>(kBlockRows);
  std::vector<int64_t> tiles;  // tiles of rows that still take keys
  std::vector<float> first_products = std::vector<float>(kTileRows * kFirstPanels * kPanelKeys);
  BlockedSum out;
};

// What one block of queries found. The blocks are joined after all are done.
struct BlockSupport {
  std::vector<int32_t> keys;
  std::vector<float> probabilities;
  int64_t listed = 0, misled_rows = 0;
};

class ScreenedRun {
 public:
  ScreenedRun(const AttentionSpec& spec, TensorView<const float> q, TensorView<const float> k,
              TensorView<const float> v, bool keep, std::span<const float> predicted_peaks,
              std::span<const float> tau_offsets, ScreenedForward& result)
      : spec_(spec),
        shape_(spec.shape),
        q_(q),
        v_(v),
        keep_(keep),
        predicted_peaks_(predicted_peaks),
        tau_offsets_(tau_offsets),
        result_(result),
        bias_(spec),
        keys_(k),
        k_magnitude_(keys_.magnitude()) {}

  int64_t blocks_a_head() const { return ceil_div(shape_.q_len, kBlockRows); }

  // Runs one block of queries of one head. Returns false, with nothing done, if scores might overflow or be
  // NaN.
  bool run_block(int64_t b, int64_t h, int64_t block, Workspace& w, BlockSupport& support) const {
    const int64_t first = block * kBlockRows;
    const int64_t rows = std::min(kBlockRows, shape_.q_len - first);
    if (!scores_stay_finite(b, h, first, rows)) return false;
    prepare(b, h, first, rows, w);
    screen(b, h, rows, w);
    for (int64_t r = 0; r < rows; ++r) {
      w.tau[r] = w.rows[r].solve();
      support.listed += w.rows[r].listed();
    }
    screen_misled(b, h, rows, w, support);
    for (int64_t r = 0; r < rows; ++r) finish_row(b, h, first + r, w.tau[r], w.rows[r], w.out, support);
    return true;
  }

 private:
  void prepare(int64_t b, int64_t h, int64_t first, int64_t rows, Workspace& w) const {
    const int64_t dim = shape_.head_dim;
    const double alpha = spec_.normalizer.alpha_of(h);
    const auto factor = static_cast<float>((alpha - 1) * std::abs(spec_.score_scale()));
    const auto cap = static_cast<float>((alpha - 1) * spec_.softcap);
    const auto sink = static_cast<float>((alpha - 1) * spec_.sink_of(h));
    const float sign = spec_.score_scale() < 0 ? -1.0f : 1.0f;
    const int64_t k_keep =
        spec_.selection.kind == SelectionKind::top_k_row ? spec_.selection.k_keep_of(h) : 0;
    w.q.assign(kBlockRows * dim, 0.0f);
    w.tiles.resize(ceil_div(rows, kTileRows));
    std::iota(w.tiles.begin(), w.tiles.end(), 0);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = q_.row(b, h, first + r);
      float* out = w.q.data() + (r / kTileRows) * dim * kTileRows + r % kTileRows;
      for (int64_t d = 0; d < dim; ++d) out[d * kTileRows] = sign * row[d];
      w.rows[r].reset(alpha, factor, cap, k_keep, sink, bias_.row(h, first + r),
                      predicted_peak(b, h, first + r));
      if (!tau_offsets_.empty()) {
        const double offset = tau_offsets_[row_index(shape_, {b, h, first + r})];
        w.rows[r].give_shift(shift_of_offset(offset, alpha, shape_.kv_len));
      }
      w.masks[r] = spec_.mask.row(shape_, b, h, first + r);
    }
  }

  float predicted_peak(int64_t b, int64_t h, int64_t i) const {
    return predicted_peaks_.empty() ? 1 : predicted_peaks_[(b * shape_.q_heads + h) * shape_.q_len + i];
  }

  // Screening compares products with a bound. A NaN compares as false, so no NaN may arise.
  bool scores_stay_finite(int64_t b, int64_t h, int64_t first, int64_t rows) const {
    const double q_magnitude = largest_magnitude(q_.row(b, h, first), rows * shape_.head_dim);
    const double product = q_magnitude * k_magnitude_ * static_cast<double>(shape_.head_dim);
    const double factor = (spec_.normalizer.alpha_of(h) - 1) * std::abs(spec_.score_scale());
    const double sink = spec_.sink_of(h);
    return product * std::max(1.0, factor) + bias_.magnitude() < 1e38 && factor > 1e-30 &&
           (std::isinf(sink) || std::abs(sink) < 1e38);
  }

  // The dense product: every visible key of every row is either kept as a candidate or certified to have p =
  // 0.
  void screen(int64_t b, int64_t h, int64_t rows, Workspace& w) const {
    int64_t begin = shape_.kv_len;
    int64_t end = 0;
    for (int64_t r = 0; r < rows; ++r) {
      if (w.masks[r].begin >= w.masks[r].end) continue;
      begin = std::min(begin, w.masks[r].begin);
      end = std::max(end, w.masks[r].end);
    }
    const int64_t kv_head = b * shape_.kv_heads + shape_.kv_head_of(h);
    const int64_t first_panel = begin / kPanelKeys;
    const int64_t last_panel = std::max(first_panel, ceil_div(end, kPanelKeys));
    const int64_t middle = std::min(last_panel, first_panel + kFirstPanels);
    if (bias_.any() && last_panel > middle) {  // ALiBi puts the last keys far above the first
      for (const int64_t t : w.tiles) {
        start_tile(kv_head, t, std::max(middle, last_panel - kFirstPanels), last_panel, rows, w);
        for (int64_t r = t * kTileRows; r < std::min((t + 1) * int64_t{kTileRows}, rows); ++r)
          w.rows[r].forget_keys();
      }
    }
    for (const int64_t t : w.tiles) start_tile(kv_head, t, first_panel, middle, rows, w);
    for (int64_t panel = middle; panel < last_panel; ++panel) {
      for (const int64_t t : w.tiles) screen_tile(kv_head, t, panel, rows, w);
    }
  }

  // Computes the rows that a prediction misled again, without the prediction. Solved rows of the same tiles
  // take no keys.
  void screen_misled(int64_t b, int64_t h, int64_t rows, Workspace& w, BlockSupport& support) const {
    w.tiles.clear();
    for (int64_t r = 0; r < rows; ++r) {
      if (!w.rows[r].misled()) continue;
      w.rows[r].begin_again();
      if (w.tiles.empty() || w.tiles.back() != r / kTileRows) w.tiles.push_back(r / kTileRows);
    }
    if (w.tiles.empty()) return;
    screen(b, h, rows, w);
    for (int64_t r = 0; r < rows; ++r) {
      if (w.rows[r].is_solved()) continue;
      w.tau[r] = w.rows[r].solve();
      support.listed += w.rows[r].listed();
      ++support.misled_rows;
    }
  }

  // Takes the panels [begin, end) for one tile of rows, with all keys at once.
  void start_tile(int64_t kv_head, int64_t t, int64_t begin, int64_t end, int64_t rows, Workspace& w) const {
    const int64_t keys = (end - begin) * kPanelKeys;
    for (int64_t panel = begin; panel < end; ++panel) {
      const Tile tile = multiply_tile(tile_queries(t, w), keys_.panel(kv_head, panel), shape_.head_dim);
      for (int64_t r = 0; r < kTileRows; ++r) {
        std::memcpy(w.first_products.data() + r * keys + (panel - begin) * kPanelKeys, &tile[r],
                    sizeof(tile[r]));
      }
    }
    const int64_t last = std::min<int64_t>(kTileRows, rows - t * kTileRows);
    for (int64_t r = 0; r < last; ++r) {
      const int64_t row = t * kTileRows + r;
      w.rows[row].take_all(w.first_products.data() + r * keys, keys, begin * kPanelKeys, w.masks[row]);
    }
  }

  void screen_tile(int64_t kv_head, int64_t t, int64_t panel, int64_t rows, Workspace& w) const {
    const int64_t last = std::min<int64_t>(kTileRows, rows - t * kTileRows);
    const auto of_rows = std::span(w.masks).subspan(t * kTileRows, last);
    static_assert(kKeysAWord % kPanelKeys == 0);
    if (std::ranges::none_of(of_rows,
                             [&](const RowMask& m) { return m.sees_some(panel * kPanelKeys, kPanelKeys); }))
      return;
    const Tile tile = multiply_tile(tile_queries(t, w), keys_.panel(kv_head, panel), shape_.head_dim);
    for (int64_t r = 0; r < last; ++r) {
      Candidates& row = w.rows[t * kTileRows + r];
      if (any_above(tile[r], row.product_threshold(panel * kPanelKeys))) {
        row.take_panel(tile[r], panel * kPanelKeys, w.masks[t * kTileRows + r]);
      }
    }
  }

  const float* tile_queries(int64_t t, const Workspace& w) const {
    return w.q.data() + t * shape_.head_dim * kTileRows;
  }

  void finish_row(int64_t b, int64_t h, int64_t i, double tau, const Candidates& row, BlockedSum& out,
                  BlockSupport& support) const {
    const int64_t index = (b * shape_.q_heads + h) * shape_.q_len + i;
    result_.tau[index] = tau;
    result_.support[index] = row.count();
    const int64_t kv_head = shape_.kv_head_of(h);
    const DropoutRow kept(spec_.dropout, index);
    const auto factor = dropout_factor<float>(spec_);
    for (int64_t n = 0; n < row.count(); ++n) {
      const int32_t key = row.keys()[n];
      if (kept.keeps(key)) out.add(factor * row.probabilities()[n], v_.row(b, kv_head, key));
    }
    out.take(result_.out.row(b, h, i));
    if (!keep_) return;
    support.keys.insert(support.keys.end(), row.keys(), row.keys() + row.count());
    support.probabilities.insert(support.probabilities.end(), row.probabilities(),
                                 row.probabilities() + row.count());
  }

  const AttentionSpec& spec_;
  const AttentionShape& shape_;
  TensorView<const float> q_, v_;
  bool keep_;
  std::span<const float> predicted_peaks_, tau_offsets_;
  ScreenedForward& result_;
  BiasTables bias_;
  PackedKeys keys_;
  double k_magnitude_;
};

void gather_support(const std::vector<BlockSupport>& blocks, ScreenedForward& result) {
  SparseProbabilities<float>& p = result.probabilities;
  p.row_offsets.resize(result.support.size() + 1);
  for (size_t i = 0; i < result.support.size(); ++i)
    p.row_offsets[i + 1] = p.row_offsets[i] + result.support[i];
  p.columns.reserve(p.row_offsets.back());
  p.values.reserve(p.row_offsets.back());
  for (const BlockSupport& block : blocks) {  // in row order
    p.columns.insert(p.columns.end(), block.keys.begin(), block.keys.end());
    p.values.insert(p.values.end(), block.probabilities.begin(), block.probabilities.end());
  }
}

// Runs the plain reference, for inputs and offsets with NaN, infinities or overflow.
ScreenedForward by_reference(const AttentionSpec& spec, TensorView<const float> q, TensorView<const float> k,
                             TensorView<const float> v, bool keep, std::span<const float> tau_offsets) {
  const std::vector<double> offsets(tau_offsets.begin(), tau_offsets.end());
  ForwardResult<float> plain =
      attention_forward<float>(spec, q, k, v, {.keep_probabilities = keep, .tau_offsets = offsets});
  ScreenedForward result{std::move(plain.out), std::move(plain.tau), std::move(plain.support), {}, 0, 0};
  if (plain.probabilities) result.probabilities = std::move(*plain.probabilities);
  return result;
}

}  // namespace

ScreenedForward screened_forward(const AttentionSpec& spec, TensorView<const float> q,
                                 TensorView<const float> k, TensorView<const float> v,
                                 bool keep_probabilities, std::span<const float> predicted_peaks,
                                 std::span<const float> tau_offsets) {
  check(spec, q, k, v);
  const AttentionShape& s = spec.shape;
  if (!predicted_peaks.empty() && static_cast<int64_t>(predicted_peaks.size()) != s.rows()) {
    throw InvalidArgument(fmt::format("there are {} predicted peaks; allowed: none, or one a row, {}",
                                      predicted_peaks.size(), s.rows()));
  }
  require_offsets(spec, tau_offsets.size());
  if (!tau_offsets.empty() && !predicted_peaks.empty())
    throw InvalidArgument("there are predicted peaks and offsets of thresholds; allowed: one of them");
  if (std::ranges::any_of(tau_offsets, [](float offset) { return std::isnan(offset); }))
    return by_reference(spec, q, k, v, keep_probabilities, tau_offsets);
  ScreenedForward result{Tensor<float>(s.batch, s.q_heads, s.q_len, s.head_dim),
                         std::vector<double>(s.rows()),
                         std::vector<int64_t>(s.rows()),
                         {},
                         0,
                         0};
  const ScreenedRun run(spec, q, k, v, keep_probabilities, predicted_peaks, tau_offsets, result);
  const int64_t blocks_a_head = run.blocks_a_head();
  const int64_t blocks = s.batch * s.q_heads * blocks_a_head;
  std::vector<BlockSupport> supports(blocks);
  std::atomic<bool> finite = true;
  const auto workspace = [&] { return Workspace(s.head_dim); };
  parallel_for_with(blocks, 1, workspace, [&](Workspace& own, int64_t i) {
    const int64_t head = i / blocks_a_head;
    if (!run.run_block(head / s.q_heads, head % s.q_heads, i % blocks_a_head, own, supports[i]))
      finite = false;
  });
  if (!finite) return by_reference(spec, q, k, v, keep_probabilities, tau_offsets);
  for (const BlockSupport& block : supports) {
    result.listed += block.listed;
    result.misled_rows += block.misled_rows;
  }
  if (keep_probabilities) gather_support(supports, result);
  return result;
}

}  // namespace splash::cpu_ref
