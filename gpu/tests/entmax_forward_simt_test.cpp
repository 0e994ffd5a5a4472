// The forward kernels of Hopper's path themselves, run thread by thread on the CPU (simt/simt.h), against the
// double oracle: bounds, lists, rings, barriers and indices, without a GPU. Rows with broad supports, which
// the kernels leave to the dense path, are skipped.

#include "core/round.h"
#include "gpu/entmax/hopper/prepare/prepare_kernel.cuh"
#include "gpu/entmax/hopper/screen/forward_kernel.cuh"
#include "gpu/entmax/problem.h"
#include "gpu/entmax/schedule/row_shares.cuh"
#include "gpu/tests/entmax_attention_scan.h"
#include "gpu/tests/entmax_simt.h"
#include "gpu/tests/entmax_weak_bounds.h"

namespace splash::gpu::entmax::hopper {
alignas(1024) unsigned char dynamic[227 * 1024];  // shared memory of a block
}

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

struct Looked {
  int most_spilled = 128;  // given: tiles of a lane that a slot holds
  // spilled: warps' places in a block that used a slot, at least; most_entries: of the support of 16
  // neighbours
  int64_t rows = 0, spilled = 0, left_out = 0, most_entries = 0;
  bool leaves = false;           // given: whether rows may be left to backward's dense products
  std::vector<char> unstored{};  // the rows of the last case that are
};

template <class T, int kPanels, class Check>
void run_case(const PortableCase& c, Looked& looked, const Check& check, const entmax::Tuning& tuning = {}) {
  const AttentionShape& s = c.spec.shape;
  const auto rows = static_cast<size_t>(s.rows());
  SimtRun<T> run(c);
  std::vector<__half> half_keys(run.k.size(), __half(NAN));
  const entmax::MaskTables tables(c.spec);
  entmax::ForwardArguments arguments = run.arguments();
  arguments.mask = tables.at(tables.data());
  arguments.tuning = tuning;
  entmax::ForwardProblem p = entmax::problem_of(c.spec, arguments);
  const auto words = static_cast<size_t>(p.heads * entmax::row_mask_words(p.q_len));
  std::vector<uint32_t> broad(words, 0xFFFFFFFF), unstored(words, 0xFFFFFFFF);
  if (looked.leaves) p.unstored_masks = unstored.data();
  std::vector<float> bounds(rows, NAN);
  const unsigned key_heads = static_cast<unsigned>(s.batch * s.kv_heads),
                 tiles_of_keys = static_cast<unsigned>(ceil_div(s.kv_len, int64_t{entmax::kErrorKeys}));
  std::vector<float> errors(size_t{key_heads} * tiles_of_keys, NAN);
  p.broad_masks = broad.data();
  p.bounds = bounds.data();
  p.errors = errors.data();
  if (std::is_same_v<T, __nv_bfloat16>) p.half_keys = half_keys.data();
  // As in pick.h, but also for fewer keys, so that picked keys occur together with all other cases.
  constexpr int kHighNorm = entmax::hopper::ForwardTiles<kPanels>::kKeys;
  p.segment = s.kv_len >= 300 ? s.kv_len >= 1500 && !p.has_ranges() ? 512 : 256 : 0;
  const int segments = p.segment > 0 ? p.kv_len / p.segment : 0;
  std::vector<__half> chosen(static_cast<size_t>(int64_t{key_heads} * segments * kHighNorm * p.head_dim),
                             __half(NAN));
  p.high_norm_per_segment = kHighNorm;
  p.high_norm_keys = chosen.data();
  constexpr int kSlots = 8;  // one block at a time: as many as its warps
  p.spill = {.count = kSlots,
             .pairs_per_lane = std::min(static_cast<int>(ceil_div(s.kv_len, 64)), looked.most_spilled)};
  constexpr int kPoison = -7;
  std::vector<int> pairs(static_cast<size_t>(kSlots * p.spill.pairs_per_lane * 32 * 2), kPoison);
  std::vector<uint32_t> taken(kSlots, 1);
  p.spill.pairs = pairs.data();
  p.spill.taken = taken.data();
  constexpr int kLanes = kPanels == 1 ? 8 : kPanels == 2 ? 16 : 32;
  simt::run({tiles_of_keys - static_cast<unsigned>(p.first_block), key_heads},
            entmax::hopper::kPrepareThreads, test_seed(),
            [&] { entmax::hopper::prepare_kernel<T, kLanes>(p); });

  const auto screen = [&]<entmax::hopper::RowKeys kRows>() {
    using Tiles = entmax::hopper::ForwardTiles<kPanels, kRows == entmax::hopper::RowKeys::largest>;
    static_assert(sizeof(Tiles) <= sizeof entmax::hopper::dynamic);
    const void* const keys_data = p.half_keys != nullptr ? p.half_keys : p.k;
    const auto map_of = [&](const void* keys, int length) {
      return arch::TensorOnCpu{.data = static_cast<const uint16_t*>(keys),
                               .heads = static_cast<int>(key_heads),
                               .length = length,
                               .dim = p.head_dim,
                               .tile_rows = Tiles::kKeys}
          .map();
    };
    const CUtensorMap map = map_of(keys_data, p.kv_len),
                      high_norm_map = map_of(p.high_norm_keys, segments * kHighNorm);
    simt::poison_shared_memory(entmax::hopper::dynamic);
    simt::run(static_cast<unsigned>(p.heads * ceil_div(s.q_len, Tiles::kQueries)), Tiles::kThreads,
              test_seed(), [&] { entmax::hopper::forward_kernel<T, kPanels, kRows>(p, map, high_norm_map); });
  };
  if (p.k_keep > 0)
    screen.template operator()<entmax::hopper::RowKeys::largest>();
  else if (p.has_ranges())
    screen.template operator()<entmax::hopper::RowKeys::ranges>();
  else
    screen.template operator()<entmax::hopper::RowKeys::below>();
  CHECK(std::count(taken.begin(), taken.end(), 0) == kSlots);  // all are given back
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const auto first = pairs.begin() + static_cast<std::ptrdiff_t>(slot * pairs.size() / kSlots);
    looked.spilled += std::any_of(first, first + 64, [](int x) { return x != kPoison; }) ? 1 : 0;
  }

  const NamedRows left(broad, p.heads, p.q_len);
  std::vector<char> left_out(rows, 0);
  for (int head = 0; head < p.heads; ++head) {
    for (int i = 0; i < left.counts[static_cast<size_t>(head)]; ++i) {
      const int query = left.queries[static_cast<size_t>(head * p.q_len + i)];
      const auto row = static_cast<size_t>(head * p.q_len + query);
      left_out[row] = 1;
      CHECK(run.results.counts[row] == -1);  // untouched
      run.results.counts[row] = 0;
    }
  }
  if (looked.leaves) {
    const NamedRows named(unstored, p.heads, p.q_len);
    looked.unstored.assign(rows, 0);
    for (int head = 0; head < p.heads; ++head)
      for (int i = 0; i < named.counts[static_cast<size_t>(head)]; ++i)
        looked.unstored[static_cast<size_t>(head * p.q_len +
                                            named.queries[static_cast<size_t>(head * p.q_len + i)])] = 1;
  }
  for (int64_t row = 0; row < s.rows(); row += 16) {
    const auto first = run.results.counts.begin() + row;
    looked.most_entries =
        std::max(looked.most_entries,
                 std::accumulate(first, first + std::min<int64_t>(16, s.rows() - row), int64_t{0}));
  }
  looked.rows += s.rows();
  looked.left_out += std::count(left_out.begin(), left_out.end(), 1);
  check(c, run.output(s), run.results, left_out);
}

const auto against_oracle = [](const auto&... results) { check_against_oracle(results...); };

template <class T>
void run_case(const PortableCase& c, Looked& looked, const entmax::Tuning& tuning = {}) {
  const int64_t dim = c.spec.shape.head_dim;
  if (dim <= 64) return run_case<T, 1>(c, looked, against_oracle, tuning);
  if (dim <= 128) return run_case<T, 2>(c, looked, against_oracle, tuning);
  if (dim <= 192) return run_case<T, 3>(c, looked, against_oracle, tuning);
  run_case<T, 4>(c, looked, against_oracle, tuning);
}

void run_any_case(const PortableCase& c, Looked& looked, const entmax::Tuning& tuning = {}) {
  if (c.dtype == Dtype::bf16) run_case<__nv_bfloat16>(c, looked, tuning);
  if (c.dtype == Dtype::f16) run_case<__half>(c, looked, tuning);
}

void check_few_are_left_out(const Looked& looked) {
  MESSAGE(looked.rows << " rows, " << looked.spilled << " places of warps whose lists spilled, "
                      << looked.left_out << " rows left to the dense path");
  CHECK(looked.left_out < looked.rows * 2 / 3);
}

}  // namespace

TEST_CASE("entmax/0-one-pass on the CPU: problems in which its features meet, against the double oracle") {
  CaseDrawer drawer(test_seed());
  Looked looked;
  for (int i = 0; i < 30; ++i) {
    const PortableCase c = drawer.draw_for_one_pass();
    run_any_case(c, looked);
  }
  check_few_are_left_out(looked);
}

TEST_CASE("entmax/0-one-pass on the CPU: rows keep their k_keep largest scores, against the double oracle") {
  CaseDrawer drawer(test_seed() + 21);
  constexpr int64_t kKeeps[] = {1, 2, 3, 8, 20, 60, 300};
  Looked looked;
  for (int i = 0; i < 18; ++i) {
    PortableCase c = i % 4 == 3 ? drawer.draw_ranges() : drawer.draw_for_one_pass();
    c.spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = kKeeps[i % std::size(kKeeps)]};
    CAPTURE(c.name);
    CAPTURE(c.spec.selection.k_keep);
    run_any_case(c, looked);
  }
  check_few_are_left_out(looked);
  for (const int64_t k_keep : {5, 40}) {  // long lists, thinned first; and ties
    PortableCase c{.name = "weak bounds, ties", .dtype = Dtype::bf16};
    c.spec.shape = {1, 1, 1, 33, 4219, 64};
    c.spec.normalizer = {NormalizerKind::entmax, {1.5}};
    c.spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
    c.inputs = weak_bounds_inputs(c.spec.shape, c.dtype, {.ties = true});
    run_any_case(c, looked);
  }
  looked = {};
  for (const int64_t k_keep : {1, 7, 64}) {  // supports of all keys, of which samples bound the largest
    PortableCase c{.name = "broad", .dtype = Dtype::bf16};
    c.spec.shape = {1, 2, 1, 50, 3000, 64};
    c.spec.normalizer = {NormalizerKind::entmax, {1.5}};
    c.spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
    c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = 0.02}, c.spec.shape);
    round_inputs(c.inputs, c.dtype);
    run_any_case(c, looked);
  }
  CHECK(looked.left_out == 0);
}

TEST_CASE("entmax/0-one-pass on the CPU: windows and packed sequences, against the double oracle") {
  Looked looked;
  for (const uint64_t seed : {test_seed(), test_seed() + 100, test_seed() + 200}) {
    CAPTURE(seed);
    CaseDrawer drawer(seed);
    for (int i = 0; i < 7; ++i) {
      const PortableCase c = drawer.draw_ranges();
      run_any_case(c, looked);
    }
  }
  check_few_are_left_out(looked);
}

TEST_CASE("entmax/0-one-pass on the CPU: every value of every knob, against the double oracle") {
  CaseDrawer drawer(test_seed() + 7);
  Looked looked;
  for (const entmax::Tuning& tuning : every_value(false)) {
    CAPTURE(to_string(tuning));
    const PortableCase c = drawer.draw_for_one_pass();
    run_any_case(c, looked, tuning);
  }
  CHECK(looked.left_out < looked.rows);
}

TEST_CASE("entmax/0-one-pass on the CPU: of each block's keys those with the largest norms are chosen") {
  constexpr int kSegment = 512, kHighNorm = 64, kDim = 8, kHeads = 2, kKeys = 2 * kSegment + 200;
  constexpr int kShare = kHighNorm * entmax::kErrorKeys / kSegment,
                kBlocks = 2 * kSegment / entmax::kErrorKeys;
  std::mt19937_64 random(test_seed());
  std::vector<float> squares(kHeads * kKeys);
  std::vector<__half> keys(squares.size() * kDim),
      chosen(size_t{kHeads} * kBlocks * kShare * kDim, __half(NAN));
  for (size_t i = 0; i < squares.size(); ++i) {
    // In the second head, few norms are distinct. Some are NaN. The second element identifies the key.
    float large = std::normal_distribution<float>(0, 4)(random);
    if (i >= kKeys) large = std::round(large);
    if (i % 391 == 390) large = NAN;
    keys[i * kDim] = __half(large);
    keys[i * kDim + 1] = __half(static_cast<float>(i % kKeys % entmax::kErrorKeys) * 0x1p-14F);
    const auto element = static_cast<float>(keys[i * kDim]);
    squares[i] = std::isnan(large) ? INFINITY : element * element;
  }
  entmax::ForwardProblem p{.heads = kHeads,
                           .q_heads = kHeads,
                           .kv_len = kKeys,
                           .head_dim = kDim,
                           .segment = kSegment,
                           .high_norm_per_segment = kHighNorm};
  std::vector<float> errors(size_t{kHeads} * ceil_div(kKeys, entmax::kErrorKeys));
  p.k = keys.data();
  p.errors = errors.data();
  p.high_norm_keys = chosen.data();
  simt::run({static_cast<unsigned>(ceil_div(kKeys, entmax::kErrorKeys)), kHeads},
            entmax::hopper::kPrepareThreads, test_seed(),
            [&] { entmax::hopper::prepare_kernel<__half, 8>(p); });
  for (int block = 0; block < kHeads * kBlocks; ++block) {
    const int first = block / kBlocks * kKeys + block % kBlocks * entmax::kErrorKeys;
    std::vector<bool> is_chosen(entmax::kErrorKeys, false);
    for (int i = 0; i < kShare; ++i) {
      const auto key =
          static_cast<float>(chosen[static_cast<size_t>((block * kShare + i) * kDim + 1)]) * 0x1p14F;
      REQUIRE(key < entmax::kErrorKeys);
      REQUIRE(!is_chosen[static_cast<size_t>(key)]);
      is_chosen[static_cast<size_t>(key)] = true;
    }
    float least = INFINITY, left = 0;
    for (int key = 0; key < entmax::kErrorKeys; ++key) {
      const float square = squares[static_cast<size_t>(first + key)];
      const bool sink = block % kBlocks == 0 && key < entmax::hopper::kSinks;
      if (sink) CHECK(is_chosen[static_cast<size_t>(key)]);
      if (is_chosen[static_cast<size_t>(key)] && !sink) least = std::min(least, square);
      if (!is_chosen[static_cast<size_t>(key)]) left = std::max(left, square);
    }
    CHECK(least >= left * 0.999F);  // closer norms count as equal
  }
}

TEST_CASE("entmax/0-one-pass on the CPU: a warp that needs a slot waits until it has one") {
  constexpr int kSlots = 5;
  for (uint64_t order = test_seed(); order < test_seed() + 20; ++order) {
    std::vector<uint32_t> taken(kSlots, 0);
    const entmax::SpillSlots slots{.taken = taken.data(), .count = kSlots};
    std::vector<int> found(32, -1);
    simt::run(1, 64, order, [&] {
      if (threadIdx.x < 32) {
        for (int i = 0; i < kSlots; ++i) entmax::hopper::take_slot(slots);
      }
      simt::exchange(simt::Scope::block, "all slots are taken", 0);
      if (threadIdx.x < 32) {
        for (int i = 0; i < 100; ++i) simt::exchange(simt::Scope::warp, "works", i);
        entmax::hopper::give_slot_back(slots, 3);
      } else {
        found[threadIdx.x % 32] = entmax::hopper::take_slot(slots);
      }
    });
    CHECK(found == std::vector<int>(32, 3));
    CHECK(taken == std::vector<uint32_t>(kSlots, 1));
  }
}

TEST_CASE("entmax/0-one-pass on the CPU: a few rows that outgrow their lists") {
  // broad: times a query: its support outgrows shared memory.
  for (const auto& [window, broad] : {std::pair{0, 0.11}, {1900, 0.1}}) {
    CAPTURE(window);
    PortableCase c{.name = "some broad rows", .dtype = Dtype::bf16};
    c.spec.shape = {1, 1, 1, 70, window > 0 ? 2200 : 1500, 64};
    c.spec.normalizer = {NormalizerKind::entmax, {1.5}};
    c.spec.mask = {.causal = window > 0, .window = window};
    c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = 6}, c.spec.shape);
    for (int64_t i = 3; i < c.spec.shape.q_len; i += 16) {
      for (int64_t d = 0; d < c.spec.shape.head_dim; ++d) c.inputs.q.row(0, 0, i)[d] *= broad;
    }
    round_inputs(c.inputs, c.dtype);
    Looked looked;
    run_case<__nv_bfloat16>(c, looked);
    CHECK(looked.spilled > 0);
    CHECK(looked.left_out == 0);
  }
}

TEST_CASE(
    "entmax/0-one-pass on the CPU: lists of all rows that are joined a few quads at a time, or not at all") {
  for (const auto& [scale, most_spilled] : {std::pair{0.125, 128}, {0.02, 128}, {0.125, 12}}) {
    CAPTURE(scale);
    CAPTURE(most_spilled);
    PortableCase c{.name = "broad rows among others", .dtype = Dtype::bf16};
    c.spec.shape = {1, 1, 1, 40, 2100, 64};
    c.spec.normalizer = {NormalizerKind::entmax, {1.4}};
    c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = 6}, c.spec.shape);
    for (int64_t i = 0; i < c.inputs.q.size(); ++i) c.inputs.q.data()[i] *= i / 64 % 16 < 6 ? scale : 1;
    round_inputs(c.inputs, c.dtype);
    Looked looked{.most_spilled = most_spilled};
    run_case<__nv_bfloat16>(c, looked);
    MESSAGE(looked.left_out << " of " << looked.rows << " rows left to the dense path");
    CHECK(looked.spilled > 0);
    if (looked.left_out == 0) CHECK(looked.most_entries > 1536);  // WarpLists::kMost
    CHECK(looked.left_out < looked.rows);
    CHECK((looked.left_out == 0) == (scale == 0.125 && most_spilled == 128));
  }
}

TEST_CASE(
    "entmax/0-one-pass on the CPU: rows that cost backward more with their entries than densely are named") {
  for (const int64_t window : {0, 700}) {
    CAPTURE(window);
    PortableCase c{.name = "broad rows among others", .dtype = Dtype::bf16};
    c.spec.shape = {1, 2, 1, 150, 1100, 64};
    c.spec.normalizer = {NormalizerKind::entmax, {1.5, 1.25}};
    c.spec.mask = {.causal = true, .window = window};
    c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = 6}, c.spec.shape);
    // Every second block of 32 queries is broad. One row in the first one has large logits.
    for (int64_t i = 0; i < c.inputs.q.size(); ++i)
      c.inputs.q.data()[i] *= i / 64 % 150 / 32 % 2 == 0 ? i / 64 == 3 ? 1000 : 0.2 : 1;
    round_inputs(c.inputs, c.dtype);
    struct Found {
      Tensor<double> output;
      std::vector<float> tau;
      std::vector<int32_t> counts;
      std::vector<char> left_out;
    } stored, leaving;
    const auto found_in = [](Found& found) {
      return [&found](const PortableCase&, const Tensor<double>& output, const auto& results,
                      const std::vector<char>& left_out) {
        found = {output, results.tau, results.counts, left_out};
      };
    };
    Looked all, looked;
    looked.leaves = true;
    run_case<__nv_bfloat16, 1>(c, all, found_in(stored));
    run_case<__nv_bfloat16, 1>(c, looked, found_in(leaving));
    CHECK(stored.left_out == leaving.left_out);
    int64_t named = 0, others = 0;
    for (int64_t first = 0; first < c.spec.shape.rows(); first += c.spec.shape.q_len) {
      for (int64_t warp = 0; warp < c.spec.shape.q_len; warp += 16) {
        int rows = 0, entries = 0, keys = 0;  // of the warp's named rows
        for (int64_t i = warp; i < std::min(warp + 16, c.spec.shape.q_len); ++i) {
          const auto row = static_cast<size_t>(first + i);
          if (stored.left_out[row] != 0) {
            CHECK(looked.unstored[row] == 1);
            continue;
          }
          CHECK(leaving.tau[row] == stored.tau[row]);
          for (int64_t d = 0; d < 64; ++d)
            CHECK(leaving.output.data()[row * 64 + static_cast<size_t>(d)] ==
                  stored.output.data()[row * 64 + static_cast<size_t>(d)]);
          CHECK(leaving.counts[row] == stored.counts[row]);
          if (looked.unstored[row] == 0) {
            ++others;
            continue;
          }
          CHECK(std::abs(stored.tau[row]) <= entmax::kMostUnstoredTau);
          const auto seen = static_cast<int>(i + 1100 - 150 + 1);
          ++rows;
          entries += stored.counts[row];
          keys += window > 0 ? std::min(seen, static_cast<int>(window)) : seen;
        }
        named += rows;
        if (rows > 0) CHECK(entmax::dense_backward_pays(rows, entries, keys));
      }
    }
    MESSAGE(named << " rows are named, " << others << " stored, " << looked.left_out
                  << " left to the dense path");
    CHECK(named > 0);
    CHECK(others > 50);
  }
}

TEST_CASE("shares take every listed row once, those of the most keys first") {
  for (const std::vector<int>& counts :
       {std::vector<int>{1000}, {0, 0}, {3, 1000, 0, 64, 65, 700}, std::vector<int>(70, 130)}) {
    for (const int rows : {64, 256}) {
      CAPTURE(counts.size());
      CAPTURE(rows);
      entmax::ForwardProblem p{.heads = static_cast<int>(counts.size()), .q_len = 1000};
      p.rows.counts = counts.data();
      std::vector<entmax::RowShare> shares(1500);
      simt::run(1, 32, test_seed(), [&] {
        for (size_t i = 0; i < shares.size(); ++i) {
          const entmax::RowShare share = entmax::row_share(p, rows, static_cast<int>(i));
          if (threadIdx.x == 0) shares[i] = share;
        }
      });
      std::vector<std::vector<char>> taken;
      for (const int count : counts) taken.emplace_back(static_cast<size_t>(count), 0);
      int rank = 0;  // from a head's end
      bool ended = false;
      for (const entmax::RowShare& share : shares) {
        ended |= share.head < 0;
        CHECK((share.head < 0) == ended);
        if (ended) continue;
        const int count = counts[static_cast<size_t>(share.head)];
        CHECK((share.first % rows == 0 && share.first < share.end && share.end <= count));
        const int its_rank = (count - 1) / rows - share.first / rows;
        CHECK(its_rank >= rank);
        rank = its_rank;
        for (int row = share.first; row < share.end; ++row)
          taken[static_cast<size_t>(share.head)][static_cast<size_t>(row)] += 1;
      }
      for (const auto& head : taken)
        CHECK(std::count(head.begin(), head.end(), 1) == static_cast<int64_t>(head.size()));
    }
  }
}

TEST_CASE(
    "entmax/0-one-pass on the CPU: where samples tell little, room is made for more keys than columns hold") {
  PortableCase c{.name = "poor samples", .dtype = Dtype::f16};
  c.spec.shape = {1, 1, 1, 40, 4000, 64};
  c.spec.normalizer = {NormalizerKind::entmax, {1.5}};
  c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = 10}, c.spec.shape);
  constexpr double kScale = 0.7;  // some 20 keys per row have p > 0; four times as many are listed
  // Every second key is large in the dimensions where queries are 0. So it is chosen, but its scores are no
  // higher.
  for (int64_t i = 0; i < c.inputs.q.size(); ++i) c.inputs.q.data()[i] *= i % 64 < 32 ? 0 : kScale;
  for (int64_t i = 0; i < c.inputs.k.size(); ++i)
    c.inputs.k.data()[i] *= i % 64 < 32 && i / 64 % 2 == 0 ? 8 : 1;
  // Every seventh key is many times in one tile.
  round_inputs(c.inputs, c.dtype);
  Looked looked;
  run_case<__half>(c, looked);
  CHECK(looked.spilled > 0);
  CHECK(looked.left_out == 0);
}

TEST_CASE("entmax/0-one-pass on the CPU: lists that do not fit since no sample is large are thinned") {
  struct Thinned {
    double alpha = 1.5;
    WeakBounds weak{};
    int64_t dim = 64, keys = 4219, window = 0;
    Dtype dtype = Dtype::bf16;
    int64_t left_out = 0;
  };
  for (const Thinned& t : {
           Thinned{1.5, {}, 64, 4219, 0, Dtype::bf16}, Thinned{1.5, {.ties = true}, 64, 4219, 0, Dtype::f16},
           Thinned{1.5, {}, 128, 4219, 0, Dtype::f16}, Thinned{2, {.scale = 0.7}, 40, 4219, 0, Dtype::bf16},
           Thinned{1.25, {.scale = 2}, 64, 4219, 0, Dtype::f16},
           Thinned{1.5, {}, 64, 4219, 4100, Dtype::bf16},
           Thinned{1.5, {.scale = 3e4}, 64, 4219, 0, Dtype::bf16},
           Thinned{1.5, {.row_scale = 0.15}, 64, 7999, 0, Dtype::bf16},      // in two sweeps
           Thinned{1.5, {.row_scale = 0.02}, 64, 7999, 0, Dtype::bf16, 19},  // supports do not fit either
       }) {
    CAPTURE(t.alpha);
    CAPTURE(t.weak.scale);
    CAPTURE(t.weak.row_scale);
    CAPTURE(t.dim);
    CAPTURE(t.window);
    PortableCase c{.name = "weak bounds", .dtype = t.dtype};
    c.spec.shape = {1, 1, 1, 150, t.keys, t.dim};
    c.spec.normalizer = {NormalizerKind::entmax, {t.alpha}};
    c.spec.mask = {.causal = t.window > 0, .window = t.window};
    c.inputs = weak_bounds_inputs(c.spec.shape, c.dtype, t.weak);
    Looked looked;
    run_any_case(c, looked);
    CHECK(looked.spilled > 0);
    CHECK(looked.left_out == t.left_out);
  }
}

TEST_CASE("entmax/0-one-pass on the CPU: tiles with more keys than lists have room for") {
  PortableCase c{.name = "ties that no sample has", .dtype = Dtype::bf16};
  c.spec.shape = {1, 1, 1, 40, 1600, 64};
  c.spec.normalizer = {NormalizerKind::entmax, {1.5}};
  c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = 1}, c.spec.shape);
  constexpr int64_t kFirst = 300, kTies = 110;
  auto& [q, k, v] = c.inputs;
  // Queries are similar. The tied keys score high with them; the other keys are larger, but where queries are
  // 0.
  for (int64_t row = 0; row < 40; ++row) {
    for (int64_t d = 0; d < 64; ++d) q.row(0, 0, row)[d] = d < 32 ? 0 : 1 + 0.1 * q.row(0, 0, row)[d];
  }
  for (int64_t key = 0; key < 1600; ++key) {
    const bool tied = key >= kFirst && key < kFirst + kTies;
    for (int64_t d = 0; d < 64; ++d) {
      if (tied) k.row(0, 0, key)[d] = d < 32 ? 0 : 2.5;
      if (!tied) k.row(0, 0, key)[d] *= d < 32 ? 8 : 2.5;
    }
  }
  round_inputs(c.inputs, c.dtype);
  Looked looked;
  run_case<__nv_bfloat16>(c, looked);
  CHECK(looked.left_out == 0);
}

TEST_CASE("entmax/0-one-pass on the CPU: sum p = 1 however large the logits are") {
  for (const double alpha : {1.25, 1.5, 2.0}) {
    CAPTURE(alpha);
    PortableCase c{.name = "huge logits", .dtype = Dtype::bf16};
    c.spec.shape = {1, 1, 1, 65, 400, 96};
    c.spec.normalizer = {NormalizerKind::entmax, {alpha}};
    c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = 1e8}, c.spec.shape);
    round_inputs(c.inputs, c.dtype);
    Looked looked;
    run_case<__nv_bfloat16>(c, looked);
    CHECK(looked.left_out == 0);
  }
}

TEST_CASE("entmax/0-one-pass on the CPU: a NaN in a key is seen, whichever keys follow") {
  for (const int64_t at : {3, 40, 127, 128, 200}) {
    CAPTURE(at);
    PortableCase c{.name = "NaN in a key", .dtype = Dtype::f16};
    c.spec.shape = {1, 1, 1, 40, 201, 64};
    c.spec.normalizer = {NormalizerKind::entmax, {1.5}};
    c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = 6}, c.spec.shape);
    c.inputs.k.row(0, 0, at)[5] = std::numeric_limits<double>::quiet_NaN();
    round_inputs(c.inputs, c.dtype);
    Looked looked;
    run_case<__half>(c, looked);
    CHECK(looked.left_out == looked.rows);
  }
}

TEST_CASE("entmax/0-one-pass on the CPU: p, its sum, the support and the output at every alpha") {
  Looked looked;
  const auto scan = [](const auto&... results) { check_scan(results...); };
  for (const Pattern pattern : kPatterns) {
    run_case<__half, 1>(scan_case(pattern, 400, Dtype::f16), looked, scan);
    for (const int64_t n : {3, 60})
      run_case<__nv_bfloat16, 1>(scan_case(pattern, n, Dtype::bf16), looked, scan);
  }
  MESSAGE(looked.rows << " rows, " << looked.left_out << " left to the dense path");
  CHECK(looked.left_out < looked.rows);
}
