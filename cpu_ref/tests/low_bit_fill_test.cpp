// Low-bit copies in host memory: what is written of which pages, and what a screen of them says.

#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include <doctest/doctest.h>

#include "core/low_bit_page.h"
#include "cpu_ref/decode/low_bit.h"
#include "cpu_ref/tests/decode_cases.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

uint16_t word_at(const uint8_t* bytes) {
  uint16_t word = 0;
  std::memcpy(&word, bytes, 2);
  return word;
}

double number(const PagedCache& cache, int64_t page, int64_t token, int64_t head, int64_t c) {
  return cache.keys[static_cast<size_t>(
      ((page * cache.page_size + token) * cache.kv_heads + head) * cache.head_dim + c)];
}

int code_in(const LowBitLayout& layout, const uint8_t* copy, int token, int c) {
  const int at = layout.group_at(token, c / 8), nibble = nibble_of(c % 8);
  return layout.bits == 8 ? copy[at + c % 8] - 128 : (copy[at + nibble / 2] >> 4 * (nibble % 2) & 15) - 8;
}

// A copy, key by key and channel by channel, as core/low_bit_page.h and the kernel have it.
void check_copy(const PagedCache& cache, int64_t page, int64_t head, int bits, const uint8_t* copy) {
  const LowBitLayout layout{static_cast<int>(cache.page_size), static_cast<int>(cache.head_dim), bits};
  std::vector<MarginSums> sums(static_cast<size_t>(cache.page_size));
  bool usable = true;
  for (int c = 0; c < layout.head_dim; ++c) {
    float low = INFINITY, high = -INFINITY;
    for (int token = 0; token < layout.page_size; ++token) {
      const auto x = static_cast<float>(number(cache, page, token, head, c));
      low = x < low || std::isnan(x) ? x : low;
      high = x > high || std::isnan(x) ? x : high;
    }
    const ChannelCode channel(low, high, bits, usable);
    REQUIRE(word_at(copy + 2 * c) == half_bits(channel.scale));
    REQUIRE(word_at(copy + layout.zeros_at() + 2 * c) == half_bits(channel.zero));
    for (int token = 0; token < layout.page_size; ++token) {
      const auto x = static_cast<float>(number(cache, page, token, head, c));
      const int code = channel.code(x, bits);
      REQUIRE(code_in(layout, copy, token, c) == code);
      sums[static_cast<size_t>(token)].add(x, channel, code);
    }
  }
  for (int token = 0; token < layout.page_size; ++token) {
    const int found = word_at(copy + layout.margins_at() + 2 * token);
    const float margin = sums[static_cast<size_t>(token)].margin(layout.head_dim, bits);
    REQUIRE(std::abs(found - int{bfloat16_above(usable ? margin : INFINITY)}) <= 1);  // sums in another order
  }
}

}  // namespace

TEST_CASE("low-bit copies: floats of float16s, all of them") {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(halves.size());
  floats_of_halves(halves.data(), 65536, floats.data());
  for (size_t i = 0; i < halves.size(); ++i)
    REQUIRE(std::bit_cast<uint32_t>(floats[i]) == std::bit_cast<uint32_t>(float_of_half(halves[i])));
}

TEST_CASE("low-bit copies: pages of every kind are stored as the layout says") {
  for (const std::string kind : kDecodeKinds) {
    for (const auto& size : {std::pair{16, 64}, {64, 128}, {256, 64}, {32, 256}}) {
      const int page_size = size.first, head_dim = size.second;
      for (const int bits : {4, 8}) {
        CAPTURE(kind);
        CAPTURE(page_size);
        CAPTURE(head_dim);
        CAPTURE(bits);
        PagedCache cache = cache_of(kind, 2, 3, page_size, head_dim);
        cache.lengths[0] = 2 * page_size;
        const Stored<float> keys(cache, cache.keys, 1);
        CacheView view = view_of(cache, "float32", keys, keys);
        const FilledCopies copies(view, bits);
        const size_t bytes = copies.bytes.size() / 4;
        for (int64_t unit = 0; unit < 4; ++unit)
          check_copy(cache, unit / 2, unit % 2, bits,
                     copies.bytes.data() + static_cast<size_t>(unit) * bytes);
      }
    }
  }
  CHECK(low_bit_bytes(3, 64, 2, 64, 4) == 3 * 2 * (4 * 64 + 2 * 64 + 64 * 64 / 2));
  CHECK(low_bit_bytes(3, 64, 2, 80, 4) == 0);
  CHECK(low_bit_bytes(3, 64, 2, 64, 0) == 0);
}

TEST_CASE("low-bit copies: the pages that have become full are filled, and no others") {
  PagedCache cache = cache_of("normal", 10, 3, 16);
  cache.batch = 3;
  cache.width = 5;
  cache.table = {0,  1, 2, 3, 4, 0, 5, -1,
                 12, 6, 7, 8, 9, 9, 9};  // a shared page, a hole, one that does not exist
  cache.lengths = {33, 80, 15};
  const Stored<float> keys(cache, cache.keys, 1);
  CacheView view = view_of(cache, "float32", keys, keys);
  const auto filled = [&](std::vector<int32_t> from, int64_t most_pages) {
    std::vector<uint8_t> bytes(static_cast<size_t>(low_bit_bytes(10, 16, 2, 64, 4)), 0xFF);
    view.bits = 4;
    fill_low_bit(view, from, most_pages, bytes.data());
    std::set<int> pages;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != 0xFF) pages.insert(static_cast<int>(i / (bytes.size() / 10)));
    }
    return pages;
  };
  CHECK(filled({}, 5) == std::set{0, 1, 5, 6});
  CHECK(filled({}, 1) == std::set{0});
  CHECK(filled({16, 64, 0}, 5) == std::set{1, 6});
  CHECK(filled({15, 31, 0}, 1) == std::set{0, 5});
  CHECK(filled({33, 80, 15}, 5).empty());
}

TEST_CASE("low-bit copies: no score lies above its upper end, whatever the query") {
  for (const std::string kind : kDecodeKinds) {
    for (const auto& size : {std::pair{16, 64}, {64, 128}, {32, 256}}) {
      const int page_size = size.first, head_dim = size.second;
      for (const int bits : {4, 8}) {
        CAPTURE(kind);
        CAPTURE(head_dim);
        CAPTURE(bits);
        PagedCache cache = cache_of(kind, 1, 3, page_size, head_dim);
        cache.lengths[0] = page_size;
        const Stored<float> keys(cache, cache.keys, 1);
        CacheView view = view_of(cache, "float32", keys, keys);
        const FilledCopies copies(view, bits);
        const LowBitLayout layout{page_size, head_dim, bits};
        // Random queries of every size, some with channels that dominate; and for each key what its rounding
        // took from it, of which its margin is made.
        constexpr int64_t kRandom = 200;
        StepFloats q(kRandom + page_size, head_dim);
        for (int64_t r = 0; r < q.rows(); ++r) {
          for (int c = 0; c < head_dim; ++c) {
            const double x = CounterRandom(9).normal(static_cast<uint64_t>(r * head_dim + c));
            q(r, c) = static_cast<float>(x * std::exp2(r % 40 - 20) *
                                         (r % 3 == 0 && c % 16 != 3 ? std::exp2(-(c % 24)) : 1));
            if (r < kRandom) continue;
            const auto token = static_cast<int>(r - kRandom);
            const uint8_t* copy = copies.bytes.data();
            const float scale = float_of_half(word_at(copy + 2 * c)),
                        zero = float_of_half(word_at(copy + layout.zeros_at() + 2 * c));
            q(r, c) = static_cast<float>(number(cache, 0, token, 0, c) - double{zero} -
                                         double{scale} * code_in(layout, copy, token, c));
          }
          if (!q.row(r).allFinite() || q.row(r).isZero()) q.row(r).setConstant(1);
        }
        std::vector<double> norms;
        for (int64_t r = 0; r < q.rows(); ++r) norms.push_back(q.row(r).cast<double>().norm());
        PageScreen screen;
        REQUIRE(screen.start(layout, q, norms));
        std::vector<float> upper(static_cast<size_t>(q.rows() * page_size));
        const uint8_t* second =
            copies.bytes.data() + layout.bytes();  // of key head 1, where page_of spoils a key
        CHECK(screen.upper_ends(second, upper.data(), page_size) ==
              (kind != "beyond float16" && kind != "not finite"));
        REQUIRE(screen.upper_ends(copies.bytes.data(), upper.data(), page_size));
        int64_t above = 0, far = 0;
        for (int64_t r = 0; r < q.rows(); ++r) {
          for (int token = 0; token < page_size; ++token) {
            double exact = 0;
            for (int c = 0; c < head_dim; ++c) exact += double{q(r, c)} * number(cache, 0, token, 0, c);
            const double end = double{upper[static_cast<size_t>(r * page_size + token)]};
            const double margin =
                double{float_of_bfloat16(word_at(copies.bytes.data() + layout.margins_at() + 2 * token))};
            above += exact > end ? 1 : 0;
            far += end - exact > 2.2 * margin * norms[static_cast<size_t>(r)] ? 1 : 0;
          }
        }
        CHECK(above == 0);
        if (kind == "normal") CHECK(far == 0);
      }
    }
  }
}

TEST_CASE("low-bit copies: what a query's integers round counts where one channel dominates") {
  // The query's first channel sets the step of its integers. A key has code 0 there, and the largest codes in
  // channels whose integers lose nearly half a step.
  PagedCache cache = cache_of("zero", 1, 3, 16, 64);
  cache.kv_heads = 1;
  cache.lengths[0] = 16;
  cache.keys.assign(16 * 64, 0);
  for (size_t c = 0; c < 64; ++c) {
    const double scale = c == 0 ? 1 : 0x1p-10;
    cache.keys[c] = -128 * scale;
    cache.keys[64 + c] = 127 * scale;
    cache.keys[2 * 64 + c] = c == 0 ? 0 : 127 * scale;
  }
  const Stored<float> keys(cache, cache.keys, 1);
  CacheView view = view_of(cache, "float32", keys, keys);
  const FilledCopies copies(view, 8);
  StepFloats q = StepFloats::Constant(1, 64, static_cast<float>(0.49 * 1024 / 32700));
  q(0, 0) = 1;
  const std::vector<double> norms{q.cast<double>().norm()};
  PageScreen screen;
  REQUIRE(screen.start({16, 64, 8}, q, norms));
  float upper[16];
  REQUIRE(screen.upper_ends(copies.bytes.data(), upper, 16));
  double exact = 0;
  for (size_t c = 0; c < 64; ++c) exact += double{q(0, static_cast<int>(c))} * cache.keys[2 * 64 + c];
  CHECK(exact > 0.1);
  CHECK(double{upper[2]} >= exact);
  CHECK(double{upper[2]} < 2 * exact);
}

TEST_CASE("low-bit copies: a screen says nothing of queries of no size, or of too much") {
  PageScreen screen;
  StepFloats q = StepFloats::Ones(2, 64);
  for (const double norm : {0.0, 1e-30, 1e30, std::nan(""), HUGE_VAL})
    CHECK(!screen.start({16, 64, 4}, q, std::vector{8.0, norm}));
  CHECK(screen.start({16, 64, 4}, q, std::vector{8.0, 8.0}));
}
