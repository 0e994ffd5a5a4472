// The kernels of decode, run thread by thread on the CPU (decode_simt.h).

#include "gpu/tests/decode_simt.h"

#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "core/low_bit_page.h"
#include "cpu_ref/decode/low_bit.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

// broad, recent: StepInputs'.
StepResults run(const DecodeCase& c, const decode::Device& device = {},
                std::vector<uint32_t>* broad = nullptr, std::vector<int32_t>* recent = nullptr) {
  if (c.options.dtype == Dtype::f16) return run_with<__half, 64>(c, device, broad, recent);
  return c.options.head_dim == 64 ? run_with<__nv_bfloat16, 64>(c, device, broad, recent)
                                  : run_with<__nv_bfloat16, 128>(c, device, broad, recent);
}

// The copies that fill's kernel makes of a case's pages beside those of host memory.
template <class T, int kDim>
void check_copies(const DecodeCase& c) {
  const std::vector<T> keys = pool_of<T>(c, c.cache.keys, 1);
  const auto size = static_cast<size_t>(decode::low_bit_bytes(device_cache(c, nullptr, nullptr, nullptr)));
  std::vector<uint8_t> room(size + 16, 0xFF), ours(size, 0xFF);
  uint8_t* theirs = room.data() + (16 - reinterpret_cast<uintptr_t>(room.data()) % 16) % 16;
  const decode::Cache cache = device_cache(c, keys.data(), keys.data(), theirs);
  const decode::PageTable table{c.cache.table.data(), c.cache.lengths.data(), static_cast<int>(c.cache.batch),
                                static_cast<int>(c.cache.width)};
  decode::Kernels<T, kDim>::fill(cache, table, nullptr, table.width, nullptr);
  const cpu_ref::Pool pool{
      .element = std::is_same_v<T, __half> ? cpu_ref::Element::f16 : cpu_ref::Element::bf16,
      .data = keys.data(),
      .page_stride = cache.keys.page_stride,
      .token_stride = cache.keys.token_stride,
      .head_stride = cache.keys.head_stride};
  const cpu_ref::CacheView view{.keys = pool,
                                .pool_pages = c.cache.pages(),
                                .page_size = c.cache.page_size,
                                .kv_heads = c.cache.kv_heads,
                                .head_dim = c.cache.head_dim,
                                .batch = c.cache.batch,
                                .width = c.cache.width,
                                .table = c.cache.table,
                                .lengths = c.cache.lengths,
                                .bits = cache.bits};
  cpu_ref::fill_low_bit(view, {}, c.cache.width, ours.data());
  const LowBitLayout layout{cache.page_size, cache.head_dim, cache.bits};
  int64_t differ = 0, filled = 0;
  for (size_t i = 0; i < size; ++i) {
    const int at = static_cast<int>(i) % layout.bytes();
    filled += theirs[i] != 0xFF ? 1 : 0;
    if (at < layout.margins_at() || at >= layout.codes_at()) {
      differ += ours[i] != theirs[i] ? 1 : 0;
    } else if (at % 2 == 0) {  // a margin, of sums in another order
      uint16_t a = 0, b = 0;
      std::memcpy(&a, &ours[i], 2);
      std::memcpy(&b, &theirs[i], 2);
      differ += std::abs(a - b) > 1 ? 1 : 0;
    }
  }
  CHECK(filled > 0);
  CHECK(differ == 0);
}

StepResults run(const DecodeCase& c, std::vector<int32_t>& recent, const decode::Device& device = {}) {
  return run(c, device, nullptr, &recent);
}

}  // namespace

TEST_CASE("decode on the CPU: rows are the oracle's, with copies and without") {
  for (const int bits : {4, 8, 0}) {
    CAPTURE(bits);
    const DecodeCase c = decode_case({.bits = bits});
    const StepResults results = run(c);
    check_step_results(c, results);
    CHECK(results.counts[0] > 0);                   // keys were screened,
    CHECK(results.counts[1] < results.counts[0]);   // not all were candidates,
    CHECK(results.counts[2] <= results.counts[1]);  // fewer were scored,
    CHECK(results.counts[3] == 0);                  // and no list overflowed
  }
}

TEST_CASE("decode on the CPU: lengths, groups, pages, alphas and nasty keys") {
  for (const DecodeOptions& options : decode_cases()) {
    capture(options, [&] {
      const DecodeCase c = decode_case(options);
      check_step_results(c, run(c));
    });
  }
}

TEST_CASE("decode on the CPU: of keys that are head and tail alone none is screened or counted") {
  for (const int bits : {4, 0}) {
    for (const int64_t group : {1, 4, 6}) {  // warps share rows, or have one each
      CAPTURE(bits);
      CAPTURE(group);
      const DecodeCase c = decode_case({.lengths = {40, 16, 64}, .group = group, .bits = bits});
      const StepResults results = run(c);
      check_step_results(c, results);
      for (const int32_t count : results.counts) CHECK(count == 0);
    }
  }
}

TEST_CASE("decode on the CPU: a row's best key bounds it, wherever in a tile it lies") {
  for (const int bits : {4, 8}) {
    CAPTURE(bits);
    for (const int64_t token : {3, 12, 20, 28, 35, 45, 50, 63}) {
      CAPTURE(token);
      DecodeCase c = decode_case({.lengths = {900}, .kv_heads = 1, .group = 1, .bits = bits});
      const int64_t dim = c.cache.head_dim;
      double* const key = c.cache.keys.data() + c.cache.table[5] * c.cache.page_elements() + token * dim;
      for (int64_t i = 0; i < dim; ++i)
        key[i] = round_to(c.options.dtype, 2 * c.inputs.q.data()[i]);  // far above all others
      const StepResults results = run(c);
      check_step_results(c, results);
      CHECK(results.support[0] == 1);
      CHECK(results.counts[1] < 4);
    }
  }
}

TEST_CASE("decode on the CPU: short steps have the bits of others, and the oracle's rows") {
  const std::vector<DecodeOptions> cases = short_cases();
  for (const int warps : {decode::kWarps, decode::kFewWarps}) {
    CAPTURE(warps);
    decode::Device device{.prefers_short = true};
    (warps == decode::kWarps ? device.short_bytes : device.few_short_bytes) = 50 << 10;
    size_t taken = 0;
    for (DecodeOptions options : cases) {
      if (options.bits == 0) options.bits = 8;
      capture(options, [&] {
        const DecodeCase c = decode_case(options);
        const StepResults results = run(c, device);
        check_step_results(c, results);
        CHECK((results.short_warps == 0 || results.short_warps == warps));
        if (results.short_warps == 0) return;
        ++taken;
        check_same_bits(results, run(c));
      });
    }
    CHECK(taken > cases.size() / 2);
  }
}

TEST_CASE("decode on the CPU: what a short step does not take, another does") {
  const decode::Device device{.short_bytes = 50 << 10, .few_short_bytes = 40 << 10, .prefers_short = true};
  const auto warps_of = [&](const DecodeOptions& options) {
    return run(decode_case(options), device).short_warps;
  };
  CHECK(warps_of({.lengths = {700}, .kv_heads = 1}) == decode::kFewWarps);
  CHECK(warps_of({.lengths = {1900}, .kv_heads = 1}) == decode::kWarps);
  CHECK(warps_of({.lengths = {2300}, .kv_heads = 1}) == 0);
  CHECK(warps_of({.lengths = {700}, .kv_heads = 1, .group = 5}) == 0);
  CHECK(warps_of({.lengths = {700}, .kv_heads = 1, .bits = 0}) == 0);
}

TEST_CASE("decode on the CPU: copies are those that host memory makes") {
  for (const int bits : {4, 8}) {
    for (const char* nasty : {"", "sink", "equal", "huge channel", "zero", "unusable", "holes", "nan key"}) {
      const DecodeOptions options{.lengths = {200}, .kv_heads = 1, .bits = bits, .nasty = nasty};
      capture(options, [&] { check_copies<__nv_bfloat16, 64>(decode_case(options)); });
    }
    const DecodeOptions options{.lengths = {70, 40},
                                .page_size = 16,
                                .head_dim = 128,
                                .bits = bits,
                                .dtype = Dtype::f16,
                                .heads_first = true};
    capture(options, [&] { check_copies<__half, 128>(decode_case(options)); });
  }
}

TEST_CASE("decode on the CPU: rows with more keys than a block lists are solved from all keys") {
  for (const int bits : {0, 4, 8}) {
    CAPTURE(bits);
    const DecodeCase c = decode_case(
        {.lengths = {777, 90}, .kv_heads = 1, .q_len = 2, .temperature = 0.1, .bits = bits});  // eight rows
    const StepResults results = run(c);
    check_step_results(c, results);
    CHECK(results.counts[3] == 1);
    CHECK(results.counts[7] == 0);
  }
}

TEST_CASE("decode on the CPU: the dense pass takes what is left to it, and gives the same bits") {
  for (DecodeOptions options : dense_cases()) {
    for (const int bits : {0, 4}) {
      options.bits = bits;
      capture(options, [&] {
        const DecodeCase c = decode_case(options);
        const StepResults screened = run(c);
        check_step_results(c, screened);
        std::vector<uint32_t> all(pairs_of(c), 0xFFFFFFFF);  // as if the last step had been broad
        const StepResults dense = run(c, {}, &all);
        check_same_bits(dense, screened);
        CHECK(dense.counts[0] == 0);
        CHECK(dense.counts[3] == 1);
        for (const int team : {2, 4}) {
          CAPTURE(team);
          std::ranges::fill(all, 0xFFFFFFFF);
          check_same_bits(run(c, with_teams(team), &all), screened);
        }
      });
    }
  }
}

TEST_CASE("decode on the CPU: each broad unit of many is some team's, and no other unit is") {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 270; ++i) lengths.push_back(1 + i % 37);  // more than a block reads at a time
  const DecodeCase c = decode_case({.lengths = lengths, .kv_heads = 1, .group = 1});
  const StepResults screened = run(c);
  check_step_results(c, screened);
  std::vector<uint32_t> memory(pairs_of(c), 0);
  for (size_t unit = 0; unit < memory.size(); ++unit)
    memory[unit] = unit == 31 || unit == 32 || unit > 260 || (unit * unit % 7 < 3 && unit / 40 != 3) ? 1 : 0;
  const std::vector<uint32_t> before = memory;
  const StepResults results = run(c, {}, &memory);
  check_same_bits(results, screened);
  for (size_t unit = 0; unit < memory.size(); ++unit)
    REQUIRE(results.counts[4 * unit + 3] == static_cast<int32_t>(before[unit]));
}

TEST_CASE("decode on the CPU: a step remembers which units were broad, and forgets") {
  const DecodeOptions options{.lengths = {3000, 2000}, .kv_heads = 1, .temperature = 0.1};
  const DecodeCase broad = decode_case(options);
  std::vector<uint32_t> memory(pairs_of(broad), 0);
  const StepResults first = run(broad, {}, &memory);
  CHECK(first.counts[0] > 0);  // screened, in vain
  CHECK(first.counts[3] == 1);
  CHECK(memory[0] == 1);
  CHECK(memory[1] == 1);
  const StepResults second = run(broad, {}, &memory);
  CHECK(second.counts[0] == 0);  // at once
  check_same_bits(second, first);
  DecodeOptions sparse_options = options;
  sparse_options.temperature = 6;
  const DecodeCase sparse = decode_case(sparse_options);
  const StepResults third = run(sparse, {}, &memory);
  check_step_results(sparse, third);
  CHECK(third.counts[3] == 1);
  CHECK(memory[0] == 0);
  const StepResults fourth = run(sparse, {}, &memory);
  CHECK(fourth.counts[0] > 0);
  CHECK(fourth.counts[3] == 0);
  check_same_bits(fourth, third);
}

TEST_CASE("decode on the CPU: the blocks of a team share a unit, and its bits are one block's") {
  for (const int bits : {0, 4}) {
    CAPTURE(bits);
    const DecodeCase c =
        decode_case({.lengths = {1700, 90, 700}, .page_size = 16, .kv_heads = 1, .bits = bits});
    const StepResults alone = run(c);
    check_step_results(c, alone);
    for (const bool is_cluster : {true, false}) {
      CAPTURE(is_cluster);
      for (const int team : {2, 4, 4, 4}) {  // each time in another order
        CAPTURE(team);
        const StepResults together = run(c, with_teams(team, is_cluster));
        check_same_bits(together, alone);
        CHECK(together.counts[3] == 0);
      }
    }
  }
}

TEST_CASE("decode on the CPU: warps share a row's list, of more keys than they read at once") {
  for (const int group : {1, 2, 4}) {  // eight, four and two warps a row
    CAPTURE(group);
    const DecodeCase c =
        decode_case({.lengths = {1700}, .page_size = 16, .kv_heads = 1, .group = group, .temperature = 0.3});
    const StepResults alone = run(c);
    check_step_results(c, alone);
    CHECK(alone.counts[3] == 0);
    CHECK(std::ranges::min(alone.support) > 100);
    for (const bool is_cluster : {true, false}) {
      for (const int team : {2, 4})  // 18 and 34 segments
        check_same_bits(run(c, with_teams(team, is_cluster)), alone);
    }
  }
}

TEST_CASE("decode on the CPU: the bits are the same however many scores a block has room for") {
  struct Copies {
    int bits;
    int64_t page_size;  // of copies, 64 keys are screened two chunks at a time
  };
  for (const Copies& copies : {Copies{0, 16}, {4, 16}, {8, 16}, {4, 64}, {8, 64}}) {
    const int bits = copies.bits;
    const int64_t page_size = copies.page_size;
    CAPTURE(bits);
    CAPTURE(page_size);
    const DecodeCase c =
        decode_case({.lengths = {1700, 700}, .page_size = page_size, .kv_heads = 1, .bits = bits});
    const StepResults all = run(c);
    check_step_results(c, all);
    const StepResults some = run(c, {.shared_bytes = 92 << 10}), none = run(c, {.shared_bytes = 80 << 10});
    check_same_bits(some, all);
    check_same_bits(none, all);
    // The fewer are held, the more keys are listed before a bound is known.
    CHECK(all.counts[1] < some.counts[1]);
    CHECK(some.counts[1] < none.counts[1]);
  }
}

TEST_CASE("decode on the CPU: the bits are the same however many keys are on their way") {
  const DecodeCase c =
      decode_case({.lengths = {1700}, .page_size = 32, .kv_heads = 1, .head_dim = 128, .bits = 0});
  const StepResults few = run(c), many = run(c, {.multiprocessors = 1000});
  check_step_results(c, few);
  check_same_bits(many, few);
}

TEST_CASE("decode on the CPU: what a step remembers, and memory of anything, changes no bit") {
  size_t number = 0;
  for (const DecodeOptions& options : memory_cases()) {
    capture(options, [&] {
      const DecodeCase c = decode_case(options);
      const StepResults without = run(c);
      std::vector<int32_t> recent = no_memory(c);
      check_same_bits(run(c, recent), without);
      CHECK(recall_as_expected(c, recent, without));
      const std::vector<int32_t> written = recent;
      check_same_bits(run(c, recent), without);
      // The first case has all memories, each other case one of them.
      for (size_t kind = 0; kind < memory_kinds(); ++kind) {
        if (number > 0 && kind != number % memory_kinds()) continue;
        CAPTURE(kind);
        recent = memory_of(kind, c, written);
        check_same_bits(run(c, recent), without);
      }
    });
    ++number;
  }
}

TEST_CASE("decode on the CPU: a step that remembers lists fewer keys; a team's blocks agree") {
  struct Split {
    int bits = 4, team = 1;
    bool is_cluster = true;
  };
  for (const Split& split : {Split{4, 1}, {4, 4}, {8, 2}, {4, 4, false}, {8, 2, false}}) {
    const int bits = split.bits, team = split.team;
    const bool is_cluster = split.is_cluster;
    CAPTURE(bits);
    CAPTURE(team);
    CAPTURE(is_cluster);
    const DecodeCase c = decode_case({.lengths = {1700, 700}, .page_size = 16, .kv_heads = 1, .bits = bits});
    const decode::Device device = with_teams(team, is_cluster);
    decode::Device small = device;
    small.shared_bytes = 92 << 10;
    const StepResults without = run(c, small);
    std::vector<int32_t> recent = no_memory(c);
    check_same_bits(run(c, recent, device), without);
    const StepResults again = run(c, recent, device);
    check_same_bits(again, without);
    CHECK(again.counts[0] == without.counts[0]);
    CHECK(again.counts[1] < without.counts[1]);
    CHECK(again.counts[2] == again.counts[1]);
    CHECK(again.counts[3] == 0);
  }
}

TEST_CASE("decode on the CPU: memory that is no use is left alone for longer and longer") {
  const DecodeCase c =
      decode_case({.lengths = {2500}, .page_size = 16, .kv_heads = 1, .group = 2, .alpha = {2}});
  const StepResults without = run(c);
  std::vector<int32_t> recent = no_memory(c);
  std::vector<int> tries;  // steps that recalled
  for (int step = 0; step < 20; ++step) {
    std::fill(recent.begin() + decode::kRecentStateWords, recent.end(), -1);  // nothing is remembered
    const bool recalls = all_recall(recent);
    const StepResults results = run(c, recent);
    check_same_bits(results, without);
    if (!recalls) continue;
    tries.push_back(step);
    CHECK(results.counts[1] > 8 * 64);  // so many that its bounds were raised
  }
  CHECK(tries == std::vector<int>{1, 18});
}

TEST_CASE("decode: blocks keep apart where multiprocessors would else have two and others none") {
  DecodeCase c = decode_case({.kv_heads = 8, .head_dim = 128});
  const decode::Cache cache = device_cache(c, nullptr, nullptr, nullptr);
  const decode::Device device{.multiprocessors = 132, .most_team = 16};
  const auto planned = [&](int batch, int keys) {
    const decode::PageTable table{.batch = batch, .width = keys / cache.page_size};
    return decode::plan_step(cache, table, {.q_heads = 32}, device).step;
  };
  CHECK(2 * (planned(8, 2048).least_shared_bytes + 1024) > device.shared_bytes);  // 128 blocks: one each
  CHECK(planned(8, 2048).least_shared_bytes < device.shared_bytes - 1024);
  CHECK(planned(8, 2048).screens_ahead);
  CHECK(planned(32, 2048).least_shared_bytes == 0);  // 256: two each
  CHECK(!planned(32, 2048).screens_ahead);
  CHECK(planned(64, 32768).least_shared_bytes == 0);
}

TEST_CASE("decode: where clusters would leave multiprocessors idle, blocks of a team run anywhere") {
  DecodeCase c = decode_case({.kv_heads = 8, .head_dim = 128});
  const decode::Cache cache = device_cache(c, nullptr, nullptr, nullptr);
  const auto planned = [&](int batch, int keys, int most_together) {
    const decode::Device device{
        .multiprocessors = 132, .most_team = 16, .most_together = most_together, .dram_rate = 4e12};
    const decode::PageTable table{.batch = batch, .width = keys / cache.page_size};
    return decode::plan_step(cache, table, {.q_heads = 32}, device).step;
  };
  for (const int batch : {1, 4, 8}) {
    CAPTURE(batch);
    const decode::Step step = planned(batch, 131072 / batch, 64);
    CHECK(!step.is_cluster);
    CHECK(step.units * step.team > 132);
    CHECK(step.units * step.team <= 2 * 132);  // they run together
    CHECK(planned(batch, 131072 / batch, 1).is_cluster);
  }
  CHECK(planned(64, 32768, 64).is_cluster);  // enough units
}

TEST_CASE("decode takes strides below 2^31 only: the kernels multiply them in one instruction") {
  const DecodeCase c = decode_case({});
  decode::Cache cache = device_cache(c, nullptr, nullptr, nullptr);
  decode::check_cache(cache);
  for (const int64_t stride : {int64_t{1} << 31, int64_t{-8}}) {
    cache.values.page_stride = stride;
    CHECK_THROWS_AS(decode::check_cache(cache), Unsupported);
  }
}
