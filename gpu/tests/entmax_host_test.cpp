// What the flagship's forward decides and computes on the host. Needs no device.

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "gpu/entmax/arguments/key_range.h"
#include "gpu/entmax/checks.h"
#include "gpu/entmax/entmax.h"
#include "gpu/entmax/hopper/prepare/high_norm.h"
#include "gpu/entmax/hopper/screen/tile_schedule.h"
#include "gpu/entmax/portable/problem.h"
#include "gpu/entmax/problem.h"
#include "gpu/entmax/schedule/block_place.h"
#include "gpu/entmax/schedule/row_shares.h"
#include "gpu/entmax/support/unstored.h"

using namespace splash;
using namespace splash::gpu::entmax;
using hopper::Span;
using hopper::TileSchedule;

namespace {

AttentionSpec spec_of(const AttentionShape& shape) {
  AttentionSpec spec;
  spec.shape = shape;
  return spec;
}

// Reads the tables as the kernels do.
bool visible(const AttentionSpec& spec, const DeviceMask& mask, int64_t b, int64_t h, int64_t query,
             int64_t key) {
  const AttentionShape& s = spec.shape;
  const int64_t head = b * s.q_heads + h, heads = s.batch * s.q_heads;
  int64_t begin = 0, end = spec.mask.causal ? query + s.kv_len - s.q_len + 1 : s.kv_len;
  if (mask.ranges != nullptr) {
    begin = mask.ranges[2 * query];
    end = mask.ranges[2 * query + 1];
  }
  if (key < begin || key >= end) return false;
  return mask.q_positions == nullptr || mask.k_positions[head * mask.k_tables / heads * s.kv_len + key] <=
                                            mask.q_positions[head * mask.q_tables / heads * s.q_len + query];
}

void check_mask(const AttentionSpec& spec) {
  spec.validate();
  const MaskTables tables(spec);
  const DeviceMask mask = tables.at(tables.data());
  const AttentionShape& s = spec.shape;
  int64_t wrong = 0;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.q_heads; ++h) {
      for (int64_t i = 0; i < s.q_len; ++i) {
        const RowMask row = spec.mask.row(s, b, h, i);
        for (int64_t j = 0; j < s.kv_len; ++j) wrong += visible(spec, mask, b, h, i, j) != row.visible(j);
      }
    }
  }
  CHECK(wrong == 0);
}

std::vector<int64_t> positions(std::mt19937_64& random, int64_t count, int64_t first, int64_t step) {
  std::vector<int64_t> list;
  for (int64_t i = 0; i < count; ++i) list.push_back(first + step * static_cast<int64_t>(random() % 9));
  return list;
}

}  // namespace

TEST_CASE("a mask's tables show what the mask shows, all parts crossed") {
  std::mt19937_64 random(1);
  const AttentionShape shape{2, 4, 2, 11, 17, 8};
  for (int parts = 0; parts < 8; ++parts) {
    for (const int64_t q_tables : {1, 2, 8}) {
      for (const int64_t k_tables : {1, 2, 8}) {
        for (const int64_t step :
             {int64_t{1}, int64_t{1} << 40}) {  // 64-bit positions are replaced by their ranks
          CAPTURE(parts);
          CAPTURE(step);
          AttentionSpec spec = spec_of(shape);
          spec.mask.causal = (parts & 1) != 0;
          if ((parts & 2) != 0) {
            spec.mask.cu_seqlens_q = {0, 3, 3, 11};
            spec.mask.cu_seqlens_k = {0, 9, 10, 17};
          }
          if ((parts & 4) != 0) {
            spec.mask.q_positions = positions(random, q_tables * shape.q_len, -step, step);
            spec.mask.k_positions = positions(random, k_tables * shape.kv_len, -2 * step, step);
          }
          check_mask(spec);
        }
      }
    }
  }
}

TEST_CASE("a causal mask needs no table") {
  AttentionSpec spec = spec_of({1, 1, 1, 5, 3, 8});
  spec.mask.causal = true;
  CHECK(MaskTables(spec).bytes() == 0);
  check_mask(spec);
}

TEST_CASE("tables that are missing are asked for") {
  AttentionSpec spec = spec_of({1, 1, 1, 4, 4, 8});
  CHECK_NOTHROW(require_mask(spec, {}));
  spec.mask.cu_seqlens_q = spec.mask.cu_seqlens_k = {0, 4};
  CHECK_THROWS_AS(require_mask(spec, {}), InvalidArgument);
  const MaskTables tables(spec);
  CHECK_NOTHROW(require_mask(spec, tables.at(tables.data())));
  spec.mask.q_positions = spec.mask.k_positions = {0, 1, 2, 3};
  CHECK_THROWS_AS(require_mask(spec, tables.at(tables.data())), InvalidArgument);
}

TEST_CASE("ranges are those of the mask, and neither end falls from row to row") {
  AttentionSpec spec = spec_of({1, 1, 1, 90, 70, 8});
  for (const int64_t window : {-70, -69, -8, -1, 0, 1, 7, 64, 69, 70, 1000}) {  // below 0: to both sides
    for (const bool packed : {false, true}) {
      for (const int64_t kv_len : {70, 90, 300}) {
        spec.shape.kv_len = kv_len;
        spec.mask = {.causal = window >= 0, .window = std::abs(window)};
        if (packed) {
          spec.mask.cu_seqlens_q = {0, 1, 30, 30, 50, 90};
          spec.mask.cu_seqlens_k = {0, 0, 40, 45, 50, kv_len};
        }
        const MaskTables tables(spec);
        const ForwardProblem p = problem_of(spec, {.mask = tables.at(tables.data())});
        CHECK(p.has_ranges() == (packed || spec.mask.has_window(spec.shape)));
        KeyRange before{0, 0};
        for (int query = 0; query < 90; ++query) {
          const KeyRange range = range_of(p, query);
          const RowMask row = spec.mask.row(spec.shape, 0, 0, query);
          CHECK(std::max(range.end - range.begin, 0) == row.count());
          if (row.count() > 0) CHECK(range.begin == row.begin);
          CHECK(range.begin >= before.begin);
          CHECK(range.end >= before.end);
          CHECK(range.begin / kErrorKeys >= p.first_block);
          before = range;
        }
      }
    }
  }
}

TEST_CASE("Hopper's path is taken where it can be, the portable one elsewhere or where it is asked for") {
  const AttentionSpec plain = spec_of({1, 2, 2, 64, 64, 64});
  AttentionSpec causal = plain, positioned = plain, packed = plain, kept = plain;
  causal.mask.causal = true;
  AttentionSpec window = causal, wide = causal, both_sides = plain;
  window.mask.window = both_sides.mask.window = 63;
  wide.mask.window = 64;  // hides no key
  positioned.mask.q_positions = positioned.mask.k_positions = std::vector<int64_t>(64, 0);
  packed.mask.cu_seqlens_q = packed.mask.cu_seqlens_k = {0, 64};
  kept.selection.kind = SelectionKind::top_k_row;
  AttentionSpec kept_apart = kept;
  kept_apart.selection.head_k_keep = {8, 0};
  AttentionSpec biased = plain;
  biased.bias = {.table = {1, 2, 3, 4}, .distances = 2, .first = -1};
  for (const AttentionSpec& spec : {plain, causal, wide, window, both_sides, packed, kept}) {
    CHECK(choose_path(spec, Dtype::bf16, ForwardPath::fastest, 90) == ForwardPath::hopper);
    CHECK(choose_path(spec, Dtype::f16, ForwardPath::hopper, 90) == ForwardPath::hopper);
    CHECK(choose_path(spec, Dtype::bf16, ForwardPath::portable, 90) == ForwardPath::portable);
    CHECK(choose_path(spec, Dtype::f32, ForwardPath::fastest, 90) == ForwardPath::portable);
    CHECK(choose_path(spec, Dtype::bf16, ForwardPath::fastest, 90, {}, true) == ForwardPath::portable);
    CHECK_THROWS_AS(choose_path(spec, Dtype::bf16, ForwardPath::hopper, 90, {}, true), Unsupported);
    for (const int capability : {80, 86, 89, 100, 120}) {
      CHECK(choose_path(spec, Dtype::bf16, ForwardPath::fastest, capability) == ForwardPath::portable);
      CHECK_THROWS_AS(choose_path(spec, Dtype::bf16, ForwardPath::hopper, capability), Unsupported);
    }
  }
  AttentionSpec pairs = plain;
  pairs.mask.pairs = std::vector<uint64_t>(64, 1);
  for (const AttentionSpec& spec : {positioned, kept_apart, biased, pairs}) {
    CHECK(choose_path(spec, Dtype::bf16, ForwardPath::fastest, 90) == ForwardPath::portable);
    CHECK_THROWS_AS(choose_path(spec, Dtype::bf16, ForwardPath::hopper, 90), Unsupported);
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32})
      CHECK_NOTHROW(require_forward(spec, dtype));
  }
  CHECK(not_on_hopper(packed, Dtype::f16) == "");
  CHECK(not_on_hopper(packed, Dtype::f16, true) == "given thresholds");
  CHECK(not_on_hopper(packed, Dtype::f32) == "float32");
  CHECK(not_on_hopper(kept, Dtype::bf16) == "");
  CHECK(not_on_hopper(kept_apart, Dtype::bf16) == "a k_keep of each head");
  CHECK(may_leave_rows(plain, ForwardPath::hopper));
  for (const auto& [spec, path] : {std::pair{kept, ForwardPath::hopper}, {plain, ForwardPath::portable}})
    CHECK_FALSE(may_leave_rows(spec, path));
  CHECK(not_on_hopper(positioned, Dtype::bf16) == "positions");
  CHECK(not_on_hopper(pairs, Dtype::bf16) == "a mask of pairs");
  CHECK(not_on_hopper(biased, Dtype::bf16) == "a bias");
}

TEST_CASE("forward names what it does not take") {
  const AttentionSpec plain = spec_of({1, 2, 2, 64, 64, 64});
  const auto why = [](const AttentionSpec& spec, Dtype dtype) -> std::string {
    try {
      require_forward(spec, dtype);
    } catch (const Unsupported& error) {
      return error.what();
    }
    return "";
  };
  CHECK(why(plain, Dtype::f32).empty());
  CHECK(why(plain, Dtype::f64) == "entmax forward takes bfloat16, float16 and float32, not float64");
  AttentionSpec spec = plain;
  spec.selection.kind = SelectionKind::top_k_block;
  CHECK(why(spec, Dtype::f32) ==
        "entmax forward takes all keys or the top_k_row, not the selection top_k_block");
  spec = plain;
  for (const double taken : {1.01, static_cast<double>(1.01F), 2.0}) {
    spec.normalizer.alpha = {taken};
    CHECK(why(spec, Dtype::f32).empty());
  }
  spec.normalizer.alpha = {1.005};
  CHECK(
      why(spec, Dtype::f32) ==
      "entmax forward takes alpha from 1.01 to 2 (nearer to 1 float32 loses p, and softmax is as dense), not "
      "1.005");
  spec = plain;
  spec.shape.q_len = int64_t{1} << 31;
  CHECK(why(spec, Dtype::f32).find("fewer than 2^31 queries a head") != std::string::npos);
  spec.shape.q_len = (int64_t{1} << 28) + 1;
  CHECK(why(spec, Dtype::f32).empty());
  spec.bias = {.table = {1, 2}, .distances = 1};
  CHECK(why(spec, Dtype::f32) ==
        "entmax forward takes a bias with up to 2^28 queries and keys, not " + to_string(spec.shape));
}

TEST_CASE("an entry of a bias: the CPU's, for kernels that count from the first key") {
  AttentionSpec spec = spec_of({1, 2, 2, 9, 14, 8});
  spec.bias = {.table = std::vector<double>(10), .distances = 5, .first = -3};
  const float table = 0;
  const DeviceBias bias = device_bias(spec, &table);
  for (int query = 0; query < 9; ++query) {
    for (int key = 0; key < 14; ++key)
      CHECK(bias.entry(query, key) == spec.bias.index(spec.shape, 0, query, key));
  }
  CHECK(device_bias(spec_of({1, 2, 2, 9, 14, 8}), &table).table == nullptr);
  CHECK_THROWS_WITH_AS(require_modifications(spec, nullptr, nullptr, nullptr),
                       "scores have a bias, but arguments.bias has no table of it", InvalidArgument);
}

TEST_CASE("the portable workspace's parts follow one another, each large enough and aligned") {
  for (const AttentionShape& s :
       {AttentionShape{1, 1, 1, 1, 1, 8}, {2, 6, 3, 77, 5, 64}, {1, 64, 8, 4097, 9, 128}}) {
    const portable::PortableWorkspace workspace(s);
    const int64_t heads = s.batch * s.q_heads;
    CHECK(workspace.queries - workspace.masks >= 4 * heads * ((s.q_len + 31) / 32));
    CHECK(workspace.counts - workspace.queries >= 4 * s.rows());
    CHECK(workspace.bytes - workspace.counts >= 4 * heads);
    for (const int64_t at : {workspace.masks, workspace.queries, workspace.counts, workspace.bytes})
      CHECK(at % 256 == 0);
  }
}

TEST_CASE("each tile of each head has its block, some heads at a time, the last tiles first") {
  for (const int together : {1, 4, 8, 16, 32}) {
    for (const int heads : {1, 3, 4, 5, 8, 18}) {
      for (const int tiles : {1, 2, 5}) {
        std::set<std::pair<int, int>> seen;
        for (int block = 0; block < heads * tiles; ++block) {
          const BlockPlace place(block, tiles, heads, together);
          CHECK(place.head / together == block / (together * tiles));
          CHECK(place.head < heads);
          CHECK((place.tile >= 0 && place.tile < tiles));
          seen.emplace(place.head, place.tile);
          const BlockPlace before(std::max(block - 1, 0), tiles, heads, together);
          if (before.head / together == place.head / together) CHECK(before.tile >= place.tile);
        }
        CHECK(seen.size() == static_cast<size_t>(heads * tiles));
      }
    }
  }
}

TEST_CASE("shares have few rows each where rows are few, and two a block where rows suffice") {
  for (const auto& [least, most] : {std::pair{16, 128}, {64, 256}}) {
    for (const int blocks : {1, 2, 132}) {
      for (const int all : {1, 15, 64, 65, 300, 8192, 32768, 147456, 10000000}) {
        CAPTURE(least);
        CAPTURE(blocks);
        CAPTURE(all);
        const int rows = rows_per_share(all, blocks, least, most);
        CHECK(rows % least == 0);
        CHECK((rows >= least && rows <= most));
        if (rows > least) CHECK(all / rows >= 2 * blocks);
        if (all < 4 * blocks * least) CHECK(rows == least);
        if (all >= 2 * blocks * most) CHECK(rows == most);
      }
    }
  }
}

TEST_CASE("rows with many entries for the keys that they see are left to backward's dense products") {
  constexpr int kRows = 16, kKeys = kRows * 8192;
  CHECK(!dense_backward_pays(kRows, kKeys / kKeysAnEntry, kKeys));
  CHECK(dense_backward_pays(kRows, kKeys / kKeysAnEntry + 1, kKeys));
  CHECK(!dense_backward_pays(kRows, kRows * kLeastEntries, kRows * 100));
  CHECK(dense_backward_pays(kRows, kRows * kLeastEntries + 1, kRows * 100));
  CHECK(!dense_backward_pays(0, 0, 0));
}

TEST_CASE(
    "a block samples the first tile, the last ones, then far keys, none twice; then it visits all tiles") {
  using Sampled = std::pair<int, int>;
  for (const auto& [keys, sampled] : {Sampled{64, 4096}, {128, 4096}, {64, 1024}, {128, 512}, {128, 16384}}) {
    for (const int segment_keys : {0, 256, 512, 2048}) {
      for (const int count : {1, 2, 3, 5, 6, 7, 11, 12, 13, 19, 20, 21, 64, 129, 1024}) {
        CAPTURE(keys);
        CAPTURE(segment_keys);
        CAPTURE(count);
        CAPTURE(sampled);
        const int first = segment_keys % 512 == 0 ? 0 : 5;  // tile
        const Span tiles{first, first + count};
        const Span segments = segment_keys > 0 ? Span{(first * keys + segment_keys - 1) / segment_keys,
                                                      tiles.end * keys / segment_keys}
                                               : Span{0, 0};
        const TileSchedule schedule(tiles, keys, segments, segment_keys, sampled);
        std::set<int> near, far;  // tiles, or segments
        int tiles_taken = 0;
        for (int position = 0; position < schedule.screen_begin; ++position) {
          const bool is_far = position >= schedule.far_begin;
          if (schedule.is_high_norm(position)) {
            CHECK(is_far);
            CHECK(far.insert(schedule.segment(position)).second);
          } else if (schedule.sampled(position) >= 0) {
            CHECK((is_far ? far : near).insert(schedule.sampled(position)).second);
          } else {
            continue;
          }
          ++tiles_taken;
        }
        CHECK(tiles_taken == static_cast<int>(near.size() + far.size()));
        CHECK(tiles_taken * keys <= sampled);
        const bool has_few = count * keys <= TileSchedule::kFewKeys;
        const int most_near =
            std::min(sampled, has_few ? TileSchedule::kNearOfFew : TileSchedule::kNearKeys) / keys;
        CHECK(static_cast<int>(near.size()) == std::min(count, most_near));
        CHECK(*near.begin() == first);
        CHECK(*near.rbegin() == tiles.end - 1);
        if (near.size() > 1) CHECK(*std::next(near.begin()) == tiles.end + 1 - static_cast<int>(near.size()));
        if (!far.empty() && segment_keys > 0) {
          CHECK(*far.begin() * segment_keys >= (first + 1) * keys);
          CHECK((*far.rbegin() + 1) * segment_keys <= *std::next(near.begin()) * keys);
          CHECK(*far.begin() >= segments.begin);
          CHECK(*far.rbegin() < segments.end);
        } else if (!far.empty()) {
          CHECK(*far.begin() > first);
          CHECK(*far.rbegin() == *std::next(near.begin()) - 1);
        }
        if (segment_keys == 0) CHECK(tiles_taken == std::min(count, sampled / keys));
        CHECK(schedule.far_begin % hopper::kTilesPerIteration == 0);
        CHECK(schedule.screen_begin % hopper::kTilesPerIteration == 0);
        std::vector<int> screened;
        for (int position = schedule.screen_begin; position < schedule.length(); ++position) {
          if (schedule.screened(position) >= 0) screened.push_back(schedule.screened(position));
        }
        CHECK(static_cast<int>(screened.size()) == count);
        for (int i = 0; i < count; ++i) CHECK(screened[static_cast<size_t>(i)] == tiles.end - 1 - i);
      }
    }
  }
  CHECK(TileSchedule({0, 9}, 64, {0, 2}, 256, 0).screen_begin == 0);
}

TEST_CASE("a block samples as many keys as it was tuned to, more where a row sees more than 16384") {
  AttentionSpec spec;
  spec.mask.causal = true;
  const auto sampled = [&](int64_t kv_len, int64_t window = 0, std::vector<int64_t> lengths = {}) {
    spec.shape = {1, 1, 1, kv_len, kv_len, 64};
    spec.mask.window = window;
    spec.mask.cu_seqlens_q = spec.mask.cu_seqlens_k = std::move(lengths);
    return sampled_keys(spec, 4096);
  };
  CHECK(sampled(100) == 4096);
  CHECK(sampled(16384) == 4096);
  CHECK(sampled(65536) == 8192);
  CHECK(sampled(131072) == 11648);
  CHECK(sampled(262144) == 16384);
  CHECK(sampled(1 << 19) == 32768);
  CHECK(sampled(1 << 24) == 1 << 20);
  CHECK(sampled(1 << 20, 1000) == 1024);
  CHECK(sampled(1 << 20, 100) == 512);
  CHECK(sampled(1 << 20, 131072) == 11648);
  CHECK(sampled(1 << 20, 0, {0, 131072, 1 << 20}) == 57344);
  CHECK(sampled(1 << 20, 0, {0, 1 << 19, 1 << 20}) == 32768);
}

TEST_CASE("high-norm keys of all segments are what a block samples at most, where kv_len allows") {
  for (const int per_segment : {64, 128}) {
    for (const int64_t kv_len : {1, 4096, 4097, 16384, 65536, 131072, 1 << 20}) {
      for (const int sampled : {1024, 4096, 16384}) {
        const int segment = hopper::high_norm_segment(kv_len, per_segment, sampled);
        CHECK((segment == 0) == (kv_len <= sampled));
        if (segment == 0) continue;
        CHECK(segment >= 2 * per_segment);
        CHECK(hopper::high_norm_per_block(per_segment, segment) >=
              4);  // kSinks of hopper/prepare/prepare_kernel.cuh
        if (segment < 2048) CHECK(kv_len / segment * per_segment <= sampled);
      }
    }
  }
}
