// Every variant's traced work against counts that look at every (query, key) pair: equal to the last byte and
// FLOP, on ragged lengths, masks and padding.

#include <algorithm>
#include <functional>

#include <doctest/doctest.h>

#include "core/round.h"
#include "core/touched_bytes.h"
#include "gpu/engine/work.h"
#include "gpu/tests/h200.h"
#include "gpu/tests/ladder_cases.h"

using namespace splash;
using namespace splash::gpu;
using gpu::testing::h200;
using gpu::testing::ladder_cases;

namespace {

// What a variant should do: FLOPs, rows read or written, other bytes, and which rows of K and V it touches.
struct Expected {
  explicit Expected(const AttentionShape& s)
      : k(static_cast<std::size_t>(s.batch * s.kv_heads * s.kv_len)), v(k.size()) {}

  double flops = 0, rows = 0, bytes = 0, distinct_bytes = 0;  // bytes: beyond rows of Q, K, V and the result
  std::vector<bool> k, v;

  void multiply(int64_t m, int64_t n, int64_t depth) { flops += 2.0 * static_cast<double>(m * n * depth); }
  void ask(double count) { rows += count; }
};

struct Problem {
  const AttentionSpec& spec;
  Dtype dtype = Dtype::f32;
  const Plan& plan;
  const AttentionShape& s = spec.shape;
  int64_t tile_q = plan.tile.q, tile_k = plan.tile.k, d = s.head_dim;

  bool sees(int64_t head, int64_t query, int64_t key) const {
    return spec.mask.row(s, head / s.q_heads, head % s.q_heads, query).visible(key);
  }
  // Whether some query of [first, first + tile) sees some key of [key, key + width).
  bool any_sees(int64_t head, int64_t first, int64_t tile, int64_t key, int64_t width) const {
    for (int64_t i = first; i < std::min(first + tile, s.q_len); ++i) {
      for (int64_t j = key; j < std::min(key + width, s.kv_len); ++j) {
        if (sees(head, i, j)) return true;
      }
    }
    return false;
  }
  int64_t visible(int64_t head, int64_t query) const {
    int64_t count = 0;
    for (int64_t j = 0; j < s.kv_len; ++j) count += sees(head, query, j) ? 1 : 0;
    return count;
  }
  int64_t kv_head(int64_t head) const { return head / s.group(); }  // heads count over all batch entries
  int64_t heads() const { return s.batch * s.q_heads; }
  int64_t keys_from(int64_t first, int64_t width) const {
    return std::clamp<int64_t>(s.kv_len - first, 0, width);
  }
  int64_t queries_from(int64_t first, int64_t width) const { return std::min(s.q_len - first, width); }

  void for_each_tile(int64_t tile, const std::function<void(int64_t head, int64_t first)>& use) const {
    for (int64_t head = 0; head < heads(); ++head) {
      for (int64_t first = 0; first < s.q_len; first += tile) use(head, first);
    }
  }
  // First keys of the tiles that the queries see; the first `least` tiles count even if no query sees them.
  std::vector<int64_t> seen_tiles(int64_t head, int64_t first, int64_t queries, int64_t width,
                                  int64_t least) const {
    std::vector<int64_t> tiles;
    for (int64_t key = 0; key < s.kv_len; key += width) {
      if (key < least * width || any_sees(head, first, queries, key, width)) tiles.push_back(key);
    }
    return tiles;
  }
  void touch(std::vector<bool>& rows, int64_t head, int64_t key, int64_t count) const {
    for (int64_t j = key; j < key + count; ++j)
      rows[static_cast<std::size_t>(kv_head(head) * s.kv_len + j)] = true;
  }
};

void count_keys_and_values(const Problem& p, int64_t head, int64_t key, int64_t width, Expected& e) {
  const int64_t rows = p.keys_from(key, width);
  if (rows == 0) return;
  e.ask(2.0 * static_cast<double>(rows));
  p.touch(e.k, head, key, rows);
  p.touch(e.v, head, key, rows);
}

// Each query reads one value, that of its newest key.
void count_one_value_each(const Problem& p, int64_t head, int64_t first, int64_t count, Expected& e) {
  for (int64_t i = first; i < first + count; ++i) {
    int64_t key = i + p.s.kv_len - p.s.q_len;
    while (key < 0) key += p.s.kv_len;
    p.touch(e.v, head, key % p.s.kv_len, 1);
    e.ask(1);
  }
}

void expect_wmma(const Problem& p, int rung, Expected& e) {
  const int64_t padded = p.d <= 64 ? 64 : p.d <= 128 ? 128 : 256;
  const bool ahead = rung == 8 || rung == 12 || rung == 13;  // cp.async loads one tile more than is used
  p.for_each_tile(p.tile_q, [&](int64_t head, int64_t first) {
    e.ask(2.0 * static_cast<double>(p.queries_from(first, p.tile_q)));
    const auto tiles = p.seen_tiles(head, first, p.tile_q, p.tile_k, 0);
    for (const int64_t key : tiles) {
      count_keys_and_values(p, head, key, p.tile_k, e);
      e.multiply(p.tile_q, p.tile_k, 2 * padded);
    }
    if (tiles.empty() && (ahead || rung == 9)) count_keys_and_values(p, head, 0, p.tile_k, e);
    if (!tiles.empty() && ahead) count_keys_and_values(p, head, tiles.back() + p.tile_k, p.tile_k, e);
  });
}

void expect_kascade(const Problem& p, int rung, Expected& e) {
  const bool whole = rung == 5 || rung == 6;  // rows that a tile lacks are read as copies of others
  const int64_t tokens = p.spec.selection.block, group_rows = p.s.group() * tokens;
  const int64_t padded = whole && p.d <= 64 ? 64 : 128;
  // A block of rung 7 is a cluster: four blocks of 128 rows (tiles of 256 keys), or as many of 256 rows as it
  // needs.
  const bool cluster = p.plan.kernels[0].name == "attend_block";
  const int64_t lists = !cluster ? 1 : p.tile_k == 256 ? 4 : p.tile_q / 256;
  for (int64_t kv = 0; kv < p.s.batch * p.s.kv_heads; ++kv) {
    for (int64_t token = 0; token < p.s.q_len; token += tokens) {
      const int64_t head = kv * p.s.group();
      const int32_t* keys = p.spec.selection.keys_of(p.s, kv / p.s.kv_heads, head % p.s.q_heads, token);
      int64_t seen = 0;
      for (; seen < p.spec.selection.k_keep && keys[seen] >= 0; ++seen) {
        if (!p.any_sees(head, token, tokens, keys[seen], 1)) break;
        p.touch(e.k, head, keys[seen], 1);
        p.touch(e.v, head, keys[seen], 1);
      }
      const int64_t tiles = ceil_div(seen, p.tile_k);
      e.distinct_bytes += 4.0 * static_cast<double>(seen);
      for (int64_t row = 0; row < group_rows; row += p.tile_q) {
        int64_t present = 0;
        for (int64_t r = row; r < std::min(row + p.tile_q, group_rows); ++r)
          present += token + r % tokens < p.s.q_len ? 1 : 0;
        e.ask(2.0 * static_cast<double>(present) + (whole ? static_cast<double>(p.tile_q - present) : 0));
        e.ask(2.0 * static_cast<double>(whole ? tiles * p.tile_k : seen));
        e.bytes += 4.0 * static_cast<double>(lists * seen);
        e.multiply(p.tile_q, tiles * p.tile_k, 2 * padded);
      }
    }
  }
}

// Rungs 2 and 3: scores in parts, then values in slices.
void expect_split(const Problem& p, int rung, Expected& e) {
  const int64_t chunk = rung == 2 ? 32 : 128 / bytes_of(p.dtype), slice = rung == 2 ? 256 : 128,
                value_keys = rung == 2 ? 64 : 32, parts = ceil_div(p.d, p.plan.tile.d),
                slices = ceil_div(p.d, slice);
  int64_t depth = 0;
  for (int64_t dim = 0; dim < p.d; dim += p.plan.tile.d)
    depth += round_up(std::min<int64_t>(p.plan.tile.d, p.d - dim), chunk);
  p.for_each_tile(p.tile_q, [&](int64_t head, int64_t first) {
    const int64_t queries = p.queries_from(first, p.tile_q);
    for (const int64_t key : p.seen_tiles(head, first, p.tile_q, 64, 1)) {
      const int64_t keys = p.keys_from(key, 64);
      e.ask(static_cast<double>(queries + keys));
      p.touch(e.k, head, key, keys);
      e.multiply(p.tile_q, 64, depth);
      e.bytes += 4.0 * static_cast<double>(parts * queries * keys);
    }
    for (const int64_t key : p.seen_tiles(head, first, p.tile_q, value_keys, 1)) {
      const int64_t keys = p.keys_from(key, value_keys);
      e.ask(static_cast<double>(keys));
      p.touch(e.v, head, key, keys);
      if (rung == 2) {
        e.multiply(p.tile_q, round_up(keys, 4), p.d);
      } else {
        e.multiply(p.tile_q, value_keys, slices * slice);
      }
      for (int64_t i = first; i < first + queries; ++i) {
        for (int64_t j = key; j < key + keys; ++j)
          e.bytes += p.sees(head, i, j) ? 4.0 * static_cast<double>(parts * slices) : 0;
      }
    }
    e.ask(static_cast<double>(queries));
  });
}

void expect_products(const Problem& p, Expected& e) {  // rung 6
  const bool bf16 = p.dtype == Dtype::bf16;
  const int64_t step = bf16 ? 64 : 32, element = bytes_of(p.dtype), pitch = round_up(p.s.kv_len, 64);
  const auto ranks = [](int64_t rows) { return ceil_div(rows, 128) % 2 == 0 ? 2 : 1; };
  const int64_t rows = 128 * ranks(p.s.q_len), value_rows = bf16 ? rows : 128 * ranks(p.d);
  p.for_each_tile(rows, [&](int64_t head, int64_t first) {
    const int64_t queries = p.queries_from(first, rows);
    for (const int64_t key : p.seen_tiles(head, first, rows, p.tile_k, 1)) {
      const int64_t keys = p.keys_from(key, p.tile_k);
      e.ask(static_cast<double>(queries + keys));
      p.touch(e.k, head, key, keys);
      e.multiply(rows, p.tile_k, round_up(p.d, step));
      e.bytes += 4.0 * static_cast<double>(queries * std::min(p.tile_k, pitch - key));
    }
  });
  for (int64_t head = 0; head < p.heads(); ++head) {
    for (int64_t i = 0; i < p.s.q_len; ++i) {
      const int64_t seen = p.visible(head, i);
      e.bytes += 4.0 * static_cast<double>(round_up(seen, 4) * (seen > 512 ? 2 : 1)) +
                 static_cast<double>(pitch * element);
    }
  }
  const int64_t queries_a_tile = bf16 ? value_rows : 256, columns_a_tile = bf16 ? 256 : value_rows;
  p.for_each_tile(queries_a_tile, [&](int64_t head, int64_t first) {
    const int64_t queries = p.queries_from(first, queries_a_tile), columns = ceil_div(p.d, columns_a_tile);
    for (const int64_t key : p.seen_tiles(head, first, queries_a_tile, step, 1)) {
      const int64_t keys = p.keys_from(key, step);
      e.ask(static_cast<double>(keys));
      p.touch(e.v, head, key, keys);
      e.multiply(queries_a_tile, columns * columns_a_tile, step);
      e.bytes += static_cast<double>(columns * queries * step * element);
    }
    e.ask(static_cast<double>(queries));
  });
}

// For any ladder: rows of softmax one at a time, which read the keys and values that they see, each once.
void expect_row_by_row(const Problem& p, Expected& e) {
  p.for_each_tile(1, [&](int64_t head, int64_t query) {
    const int64_t keys = p.visible(head, query);
    e.ask(2.0 + 2.0 * static_cast<double>(keys));
    p.touch(e.k, head, 0, keys);
    p.touch(e.v, head, 0, keys);
    e.multiply(1, keys, 2 * p.d);
  });
}

void expect_large_dims(const Problem& p, int rung, Expected& e) {
  const bool f32 = p.dtype == Dtype::f32;
  const std::string& kernel = p.plan.kernels[0].name;
  if (rung == 6 || kernel == "multiply_scores") return expect_products(p, e);
  if (rung == 2 || rung == 3) return expect_split(p, rung, e);
  const bool shared_keys = rung == 1 || rung == 8 || rung == 9;
  const int64_t ranks = rung == 4 ? 1 : p.plan.kernels[0].blocks / (p.heads() * ceil_div(p.s.q_len, 16));
  const int64_t depth = shared_keys ? round_up(p.d, 32) : rung == 4 ? p.d : ranks * p.plan.tile.d;
  const double times = rung >= 5 && !shared_keys && f32 ? 3 : 1;
  const int64_t tile_q = shared_keys ? p.tile_q : 16;
  p.for_each_tile(tile_q, [&](int64_t head, int64_t first) {
    const int64_t queries = p.queries_from(first, tile_q);
    const auto tiles = p.seen_tiles(head, first, tile_q, p.tile_k, 1);
    for (const int64_t key : tiles) {
      const double before = e.flops;
      count_keys_and_values(p, head, key, p.tile_k, e);
      e.multiply(tile_q, p.tile_k, depth);
      e.multiply(tile_q, shared_keys ? round_up(p.keys_from(key, p.tile_k), 4) : p.tile_k,
                 shared_keys ? p.d : depth);
      e.flops = before + times * (e.flops - before);
    }
    const auto count = static_cast<double>(tiles.size());
    e.ask(static_cast<double>(queries) * (shared_keys ? count + 1 : 2));
    if (shared_keys) e.bytes += (count - 1) * 2 * 4 * static_cast<double>(queries * p.d);
  });
}

void expect_splash(const Problem& p, int rung, Expected& e) {
  const bool screen = rung == 7;
  const int64_t depth = screen ? round_up(p.d, 64) : p.d, k_tiles = ceil_div(p.s.kv_len, p.tile_k);
  const int64_t tile_bytes = p.tile_k * round_up(p.d, 64) * 2;
  if (screen) {  // the rounded copy, and two norms per tile
    const int64_t key_heads = p.s.batch * p.s.kv_heads;
    e.ask(static_cast<double>(key_heads * p.s.kv_len));
    e.k.assign(e.k.size(), true);
    e.bytes += static_cast<double>(key_heads * k_tiles * (tile_bytes + 8));
  }
  p.for_each_tile(p.tile_q, [&](int64_t head, int64_t first) {
    const int64_t queries = p.queries_from(first, p.tile_q);
    const auto tiles = p.seen_tiles(head, first, p.tile_q, p.tile_k, 0);
    e.ask(static_cast<double>(queries));
    for (const int64_t key : tiles) {
      e.multiply(p.tile_q, p.tile_k, screen ? 2 * depth : depth);
      if (screen) {
        e.bytes += 2.0 * static_cast<double>(tile_bytes);
        continue;
      }
      e.ask(static_cast<double>(p.keys_from(key, p.tile_k)));
      p.touch(e.k, head, key, p.keys_from(key, p.tile_k));
    }
    if (rung <= 1) return;
    if (!tiles.empty()) count_one_value_each(p, head, first, queries, e);
    e.ask(static_cast<double>(queries));
  });
  if (rung > 1) return;
  const int64_t words = k_tiles * p.tile_k / 32;
  for (int64_t head = 0; head < p.heads(); ++head) {
    for (int64_t i = 0; i < p.s.q_len; ++i) {
      int64_t kept = 0;
      for (int64_t block = 0; block < p.s.kv_len; block += p.spec.selection.block) {
        int64_t seen = 0;
        for (int64_t j = block; j < std::min(block + p.spec.selection.block, p.s.kv_len); ++j)
          seen += p.sees(head, i, j) ? 1 : 0;
        kept += std::min(seen, p.spec.selection.k_keep);
      }
      // The mask is written and read, and so are counts, keys and scores.
      e.bytes += static_cast<double>(2 * 4 * words + 2 * 4 + 4 * 4 * kept);
      e.ask(2.0 + static_cast<double>(kept));
      e.multiply(1, kept, p.d);
      if (kept > 0) count_one_value_each(p, head, i, 1, e);
    }
  }
}

void expect_entmax(const Problem& p, Expected& e) {
  const bool copy = p.dtype == Dtype::bf16;
  int64_t first_key = 0;  // that a row sees: all blocks of 128 keys from its own on are prepared
  while (first_key < p.s.kv_len && !p.sees(0, 0, first_key)) ++first_key;
  if (first_key == p.s.kv_len) first_key = 0;
  const int64_t prepared = p.s.kv_len - first_key / 128 * 128, key_heads = p.s.batch * p.s.kv_heads,
                errors = ceil_div(prepared, 128);
  e.ask(static_cast<double>(key_heads * prepared));
  for (int64_t head = 0; head < p.heads(); ++head) p.touch(e.k, head, p.s.kv_len - prepared, prepared);
  e.bytes += static_cast<double>(key_heads * (errors * 4 + (copy ? prepared * p.d * 2 : 0)));
  p.for_each_tile(p.tile_q, [&](int64_t head, int64_t first) {
    const int64_t queries = p.queries_from(first, p.tile_q);
    const auto tiles = p.seen_tiles(head, first, p.tile_q, p.tile_k, 0);
    const auto count = static_cast<int64_t>(tiles.size());
    e.ask(2.0 * static_cast<double>(queries));
    if (count > 0)
      e.bytes += 4.0 * static_cast<double>(ceil_div(tiles.back() + p.tile_k, 128) - tiles.front() / 128);
    // With so few keys all are sampled. A round has two tiles.
    CHECK(p.s.kv_len <= 4096);
    for (const int64_t key : tiles) e.ask(2.0 * static_cast<double>(p.keys_from(key, p.tile_k)));
    e.multiply(p.tile_q, 2 * round_up(count, 2) * p.tile_k, round_up(p.d, 64));
    if (count > 0) count_one_value_each(p, head, first, queries, e);
  });
}

void expect_portable(const Problem& p, Expected& e) {
  constexpr int64_t kRowsOfWarp = 16;
  // Positions hide scores, but no whole tile.
  AttentionSpec open = p.spec;
  open.mask.q_positions.clear();
  open.mask.k_positions.clear();
  const Problem ranges{open, p.dtype, p.plan};
  const auto tiles_between = [&](int64_t head, int64_t first, int64_t count) {
    const auto seen = ranges.seen_tiles(head, first, count, p.tile_k, 0);
    std::vector<int64_t> tiles;
    for (int64_t key = seen.empty() ? 0 : seen.front(); !seen.empty() && key <= seen.back(); key += p.tile_k)
      tiles.push_back(key);
    return tiles;
  };
  p.for_each_tile(p.tile_q, [&](int64_t head, int64_t first) {
    const int64_t queries = p.queries_from(first, p.tile_q);
    e.ask(2.0 * static_cast<double>(queries));
    const auto tiles = tiles_between(head, first, p.tile_q);
    for (const int64_t key : tiles) {
      e.ask(static_cast<double>(p.keys_from(key, p.tile_k)));
      p.touch(e.k, head, key, p.keys_from(key, p.tile_k));
    }
    for (int64_t row = first; row < first + queries; row += kRowsOfWarp) {
      const auto of_warp = static_cast<int64_t>(tiles_between(head, row, kRowsOfWarp).size());
      e.multiply(kRowsOfWarp, of_warp * p.tile_k, p.dtype == Dtype::f32 ? p.d : round_up(p.d, 16));
    }
    if (!tiles.empty()) count_one_value_each(p, head, first, queries, e);
  });
}

Expected expected_of(const Variant& variant, const Problem& p) {
  Expected e(p.s);
  if (p.tile_q == 1) {
    expect_row_by_row(p, e);
    return e;
  }
  if (variant.ladder == "wmma") expect_wmma(p, variant.rung, e);
  if (variant.ladder == "kascade") expect_kascade(p, variant.rung, e);
  if (variant.ladder == "large_dims") expect_large_dims(p, variant.rung, e);
  if (variant.ladder == "splash") expect_splash(p, variant.rung, e);
  if (variant.ladder == "entmax") variant.rung == 0 ? expect_entmax(p, e) : expect_portable(p, e);
  return e;
}

}  // namespace

TEST_CASE("every variant's FLOPs and bytes are what looking at every pair counts") {
  for (const Variant* variant : all_variants()) {
    CAPTURE(variant->id());
    for (const auto& c : ladder_cases(*variant, h200())) {
      CAPTURE(c.name);
      const Plan plan = variant->plan(c.spec, c.dtype, h200());
      const Work work = count_work(*variant, c.spec, c.dtype, plan, h200());
      const Expected e = expected_of(*variant, {c.spec, c.dtype, plan});
      const auto row_bytes = static_cast<double>(c.spec.shape.head_dim * bytes_of(c.dtype));
      CHECK(work.executed_flops == e.flops);
      CHECK(work.l2_bytes == e.rows * row_bytes + e.bytes);
      const auto touched = [](const std::vector<bool>& rows) {
        return static_cast<double>(std::count(rows.begin(), rows.end(), true));
      };
      const auto queries = static_cast<double>(c.spec.shape.rows());
      CHECK(work.dram_bytes == (2 * queries + touched(e.k) + touched(e.v)) * row_bytes + e.distinct_bytes);
    }
  }
}

TEST_CASE(
    "every trace writes the result whole, stays inside what the call has, and names kernels of the plan") {
  for (const Variant* variant : all_variants()) {
    CAPTURE(variant->id());
    for (const auto& c : ladder_cases(*variant, h200())) {
      CAPTURE(c.name);
      const AttentionShape& s = c.spec.shape;
      const Plan plan = variant->plan(c.spec, c.dtype, h200());
      const int64_t row_bytes = s.head_dim * bytes_of(c.dtype), queries = s.rows() * row_bytes,
                    keys = s.batch * s.kv_heads * s.kv_len * row_bytes;
      const int64_t sizes[] = {queries,
                               keys,
                               keys,
                               queries,
                               static_cast<int64_t>(c.spec.selection.keys.size()) * 4,
                               plan.workspace_bytes};
      TouchedBytes touched;
      int64_t written = 0, outside = 0;
      BlockTrace trace;
      for (const KernelTrace& kernel : variant->trace(c.spec, c.dtype, plan)) {
        const bool named = std::any_of(plan.kernels.begin(), plan.kernels.end(),
                                       [&](const auto& launch) { return launch.name == kernel.kernel; });
        CHECK((named || kernel.kernel == "prepare_kernel"));
        for (int64_t block = 0; block < kernel.blocks; ++block) {
          trace.clear();
          kernel.run(block, trace);
          touched.add(trace);
          for (const auto& range : trace.ranges()) {
            const int64_t end = range.offset + (range.rows - 1) * range.pitch + range.bytes;
            outside += range.offset < 0 || end > sizes[static_cast<int>(range.operand)] ? 1 : 0;
            if (range.write && range.operand == Operand::out) written += range.bytes * range.rows;
          }
        }
      }
      CHECK(outside == 0);
      CHECK(touched.of(Operand::out) == queries);
      const bool accumulates = variant->ladder == "large_dims" && c.dtype == Dtype::f32 &&
                               (variant->rung == 1 || variant->rung == 8 || variant->rung == 9);
      if (!accumulates) CHECK(written == queries);
    }
  }
}

TEST_CASE("selected pairs are those that looking at every pair counts") {
  for (const Variant* variant : all_variants()) {
    for (const auto& c : ladder_cases(*variant, h200())) {
      CAPTURE(c.name);
      const Problem p{c.spec, c.dtype, {}};
      double pairs = 0;
      const Selection& selection = c.spec.selection;
      for (int64_t head = 0; head < p.heads(); ++head) {
        for (int64_t i = 0; i < p.s.q_len; ++i) {
          std::vector<int64_t> of_block(static_cast<std::size_t>(p.s.kv_len / selection.block + 1));
          const int32_t* const listed =
              selection.kind == SelectionKind::shared_keys
                  ? selection.keys_of(p.s, head / p.s.q_heads, head % p.s.q_heads, i)
                  : nullptr;
          for (int64_t j = 0; j < p.s.kv_len; ++j) {
            const bool taken = listed == nullptr ||
                               std::find(listed, listed + selection.k_keep, j) != listed + selection.k_keep;
            if (taken && p.sees(head, i, j)) ++of_block[static_cast<std::size_t>(j / selection.block)];
          }
          int64_t of_row = 0;
          for (const int64_t count : of_block)
            of_row +=
                selection.kind == SelectionKind::top_k_block ? std::min(count, selection.k_keep) : count;
          pairs += static_cast<double>(
              selection.kind == SelectionKind::top_k_row ? std::min(of_row, selection.k_keep) : of_row);
        }
      }
      CHECK(selected_pairs(c.spec) == pairs);
    }
  }
}
