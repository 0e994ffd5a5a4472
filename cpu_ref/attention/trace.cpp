#include "cpu_ref/attention/trace.h"

#include <algorithm>
#include <memory>
#include <span>

#include <fmt/format.h>

#include "core/error.h"
#include "core/round.h"
#include "cpu_ref/attention/row.h"
#include "cpu_ref/attention/screening/blocks.h"

namespace splash::cpu_ref {
namespace {

constexpr int64_t kFloat = sizeof(float), kDouble = sizeof(double);
// Bytes per entry of the support. By row: column, p and ds. By column: also its index and its row.
constexpr int64_t kRowEntryBytes = 12, kColumnEntryBytes = 24;

// The keys that a block of rows may see: [begin, end), both 0 if there are none.
struct SeenKeys {
  int64_t begin = 0, end = 0;

  SeenKeys(const AttentionSpec& spec, int64_t b, int64_t h, int64_t first, int64_t rows) {
    int64_t least = spec.shape.kv_len;
    for (int64_t i = first; i < first + rows; ++i) {
      const RowMask row = spec.mask.row(spec.shape, b, h, i);
      if (row.begin >= row.end) continue;
      least = std::min(least, row.begin);
      end = std::max(end, row.end);
    }
    begin = std::min(least, end);
  }
};

// Traces reads and writes of rows, and knows the support.
class Traced {
 public:
  Traced(const AttentionSpec& spec, const SparseProbabilities<float>& support)
      : spec_(&spec), support_(&support) {
    const auto rows = static_cast<std::size_t>(spec.shape.rows());
    if (support.row_offsets.size() != rows + 1) {
      throw InvalidArgument(fmt::format("the support has {} rows; the problem has {}",
                                        std::max<std::size_t>(1, support.row_offsets.size()) - 1, rows));
    }
  }

  const AttentionSpec& spec() const { return *spec_; }
  const AttentionShape& shape() const { return spec_->shape; }
  int64_t key_head_of(int64_t row) const {
    const RowAddress at = row_address(shape(), row);
    return at.batch * shape().kv_heads + shape().kv_head_of(at.q_head);
  }
  int64_t first_entry(int64_t row) const { return support_->row_offsets[static_cast<std::size_t>(row)]; }
  // Index of a row of K and V, counted over all heads.
  int64_t key_row(int64_t row, int64_t entry) const {
    return key_head_of(row) * shape().kv_len + support_->columns[static_cast<std::size_t>(entry)];
  }

  void read(BlockTrace& trace, Operand operand, int64_t row, int64_t count = 1,
            int64_t bytes = kFloat) const {
    trace.read(operand, row * shape().head_dim * bytes, count * shape().head_dim * bytes);
  }
  void write(BlockTrace& trace, Operand operand, int64_t row, int64_t count = 1,
             int64_t bytes = kFloat) const {
    trace.write(operand, row * shape().head_dim * bytes, count * shape().head_dim * bytes);
  }
  void read_and_write(BlockTrace& trace, Operand operand, int64_t row, int64_t bytes) const {
    read(trace, operand, row, 1, bytes);
    write(trace, operand, row, 1, bytes);
  }

  // For all entries of a row: reads the row of K or of V that the entry names and multiplies with it, 2 d
  // FLOPs per entry.
  void walk_entries(BlockTrace& trace, Operand operand, int64_t row) const {
    for (int64_t n = first_entry(row); n < first_entry(row + 1); ++n) read(trace, operand, key_row(row, n));
    trace.multiply(1, shape().head_dim, first_entry(row + 1) - first_entry(row));
  }

 private:
  const AttentionSpec* spec_;
  const SparseProbabilities<float>* support_;
};

// Transposes K into panels, with zeros after the last key.
KernelTrace pack_keys(const Traced& t) {
  using screening::kPanelKeys;
  const AttentionShape& s = t.shape();
  const int64_t panels = ceil_div(s.kv_len, kPanelKeys);
  const auto run = [=](int64_t i, BlockTrace& trace) {
    const int64_t head = i / panels, first = i % panels * kPanelKeys;
    t.read(trace, Operand::k, head * s.kv_len + first, std::min<int64_t>(kPanelKeys, s.kv_len - first));
    t.write(trace, Operand::workspace, i * kPanelKeys, kPanelKeys);
  };
  return {.kernel = "pack_keys", .blocks = s.batch * s.kv_heads * panels, .through_l1 = true, .run = run};
}

int64_t packed_bytes(const AttentionShape& s) {
  return s.batch * s.kv_heads * round_up(s.kv_len, screening::kPanelKeys) * s.head_dim * kFloat;
}

// Multiplies a block of rows with all panels of keys, then reads the values of its support.
KernelTrace screen(const Traced& t) {
  using namespace screening;
  const AttentionShape& s = t.shape();
  const int64_t blocks_a_head = ceil_div(s.q_len, kBlockRows), panels = ceil_div(s.kv_len, kPanelKeys);
  const auto run = [=](int64_t i, BlockTrace& trace) {
    const int64_t head = i / blocks_a_head, first = i % blocks_a_head * kBlockRows,
                  rows = std::min(kBlockRows, s.q_len - first), tiles = ceil_div(rows, kTileRows);
    const int64_t first_row = head * s.q_len + first, key_head = t.key_head_of(first_row);
    const SeenKeys seen(t.spec(), head / s.q_heads, head % s.q_heads, first, rows);
    const int64_t begin = seen.begin / kPanelKeys, end = std::max(begin, ceil_div(seen.end, kPanelKeys)),
                  middle = std::min(end, begin + kFirstPanels);
    const auto read_panels = [&](int64_t from, int64_t to) {
      t.read(trace, Operand::workspace, (key_head * panels + from) * kPanelKeys, (to - from) * kPanelKeys);
    };
    t.read(trace, Operand::q, first_row, rows);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      if (middle > begin) read_panels(begin, middle);
      trace.multiply(kTileRows, (middle - begin) * kPanelKeys, s.head_dim);
      trace.next_step();
    }
    for (int64_t panel = middle; panel < end; ++panel) {
      read_panels(panel, panel + 1);  // only once: L1 holds it for the other tiles
      trace.multiply(tiles * kTileRows, kPanelKeys, s.head_dim);
      trace.next_step();
    }
    for (int64_t row = first_row; row < first_row + rows; ++row) t.walk_entries(trace, Operand::v, row);
    trace.next_step();
    t.write(trace, Operand::out, first_row, rows);
  };
  return {.kernel = "screen", .blocks = s.batch * s.q_heads * blocks_a_head, .through_l1 = true, .run = run};
}

// Computes dP and dQ from the values and keys of each row's support.
KernelTrace row_gradients(const Traced& t) {
  using screening::kBackwardRows;
  const int64_t rows = t.shape().rows(), packed = packed_bytes(t.shape());
  const auto run = [=](int64_t i, BlockTrace& trace) {
    for (int64_t row = i * kBackwardRows; row < std::min(rows, (i + 1) * kBackwardRows); ++row) {
      const int64_t entry = t.first_entry(row), entries = t.first_entry(row + 1) - entry;
      trace.read(Operand::workspace, packed + entry * kRowEntryBytes, entries * kRowEntryBytes);
      t.read(trace, Operand::d_out, row);
      t.walk_entries(trace, Operand::v, row);
      t.walk_entries(trace, Operand::k, row);
      t.write(trace, Operand::d_q, row);
      trace.next_step();
    }
  };
  return {.kernel = "row_gradients", .blocks = ceil_div(rows, kBackwardRows), .through_l1 = true, .run = run};
}

// For each key, the rows whose support names it; stored for all keys one after another.
struct ByKey {
  std::vector<int64_t> offsets, rows;

  explicit ByKey(const Traced& t) {
    const AttentionShape& s = t.shape();
    offsets.assign(static_cast<std::size_t>(s.batch * s.kv_heads * s.kv_len + 1), 0);
    const auto each = [&](const auto& use) {
      for (int64_t row = 0; row < s.rows(); ++row) {
        for (int64_t n = t.first_entry(row); n < t.first_entry(row + 1); ++n)
          use(static_cast<std::size_t>(t.key_row(row, n)), row);
      }
    };
    each([&](std::size_t key, int64_t) { ++offsets[key + 1]; });
    for (std::size_t key = 1; key < offsets.size(); ++key) offsets[key] += offsets[key - 1];
    std::vector<int64_t> next(offsets.begin(), offsets.end() - 1);
    rows.resize(static_cast<std::size_t>(offsets.back()));
    each([&](std::size_t key, int64_t row) { rows[static_cast<std::size_t>(next[key]++)] = row; });
  }
};

// Computes dK and dV from the queries and output gradients of the rows that attend to each key.
KernelTrace key_gradients(const Traced& t) {
  using screening::kBackwardKeys;
  const AttentionShape& s = t.shape();
  const int64_t keys = s.batch * s.kv_heads * s.kv_len, packed = packed_bytes(s);
  const auto run = [=, by_key = std::make_shared<const ByKey>(t)](int64_t i, BlockTrace& trace) {
    for (int64_t key = i * kBackwardKeys; key < std::min(keys, (i + 1) * kBackwardKeys); ++key) {
      const int64_t begin = by_key->offsets[static_cast<std::size_t>(key)],
                    end = by_key->offsets[static_cast<std::size_t>(key + 1)];
      trace.read(Operand::workspace, packed + begin * kColumnEntryBytes, (end - begin) * kColumnEntryBytes);
      for (int64_t n = begin; n < end; ++n) {
        t.read(trace, Operand::d_out, by_key->rows[static_cast<std::size_t>(n)]);
        t.read(trace, Operand::q, by_key->rows[static_cast<std::size_t>(n)]);
      }
      trace.multiply(2, s.head_dim, end - begin);
      t.write(trace, Operand::d_k, key);
      t.write(trace, Operand::d_v, key);
      trace.next_step();
    }
  };
  return {.kernel = "key_gradients", .blocks = ceil_div(keys, kBackwardKeys), .through_l1 = true, .run = run};
}

// Computes the scores of one row with all keys in the range that its mask leaves.
void score_row(const Traced& t, int64_t row, BlockTrace& trace) {
  const RowAddress at = row_address(t.shape(), row);
  const RowMask mask = t.spec().mask.row(t.shape(), at.batch, at.q_head, at.query);
  const int64_t keys = std::max<int64_t>(0, mask.end - mask.begin);
  t.read(trace, Operand::q, row);
  if (keys > 0) t.read(trace, Operand::k, t.key_head_of(row) * t.shape().kv_len + mask.begin, keys);
  trace.multiply(1, keys, t.shape().head_dim);
  trace.next_step();
}

}  // namespace

std::vector<KernelTrace> screened_trace(const AttentionSpec& spec, const SparseProbabilities<float>& support,
                                        bool backward) {
  const Traced t(spec, support);
  std::vector<KernelTrace> parts{pack_keys(t), screen(t)};
  if (!backward) return parts;
  parts.push_back(row_gradients(t));
  parts.push_back(key_gradients(t));
  return parts;
}

std::vector<KernelTrace> reference_trace(const AttentionSpec& spec, const SparseProbabilities<float>& support,
                                         bool backward) {
  const Traced t(spec, support);
  const AttentionShape& s = spec.shape;
  const auto forward_row = [=](int64_t row, BlockTrace& trace) {
    score_row(t, row, trace);
    t.walk_entries(trace, Operand::v, row);
    t.write(trace, Operand::out, row);
  };
  // A thread takes a key head with its rows in order; gradients are summed in double.
  const auto backward_head = [=](int64_t key_head, BlockTrace& trace) {
    const int64_t first = key_head * s.group() * s.q_len;  // the heads of a group are adjacent
    for (int64_t row = first; row < first + s.group() * s.q_len; ++row) {
      score_row(t, row, trace);
      t.read(trace, Operand::d_out, row);
      for (const Operand rows : {Operand::v, Operand::k}) t.walk_entries(trace, rows, row);
      for (int64_t n = t.first_entry(row); n < t.first_entry(row + 1); ++n) {
        for (const Operand gradient : {Operand::d_v, Operand::d_k})
          t.read_and_write(trace, gradient, t.key_row(row, n), kDouble);
      }
      trace.multiply(2, s.head_dim, t.first_entry(row + 1) - t.first_entry(row));
      t.read_and_write(trace, Operand::d_q, row, kDouble);
      trace.next_step();
    }
  };
  std::vector<KernelTrace> parts{
      {.kernel = "forward_rows", .blocks = s.rows(), .through_l1 = true, .run = forward_row}};
  if (backward) {
    parts.push_back({.kernel = "backward_rows",
                     .blocks = s.batch * s.kv_heads,
                     .through_l1 = true,
                     .run = backward_head});
  }
  return parts;
}

}  // namespace splash::cpu_ref
