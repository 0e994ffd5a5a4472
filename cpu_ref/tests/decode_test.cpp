// The oracle of decode, the low-bit copies of pages, and the screen that they allow.

#include "cpu_ref/decode/decode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include <Eigen/Core>
#include <doctest/doctest.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/low_bit_page.h"
#include "core/random.h"
#include "cpu_ref/entmax/solver.h"

using namespace splash;
using namespace splash::cpu_ref;

namespace {

float from_bits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// A page of keys [page_size][head_dim] that are hard to store, by kind.
constexpr const char* kKinds[] = {"normal", "sink", "equal",          "huge channel",
                                  "zero",   "tiny", "beyond float16", "not finite"};

std::vector<double> page_of(const std::string& kind, int keys, int dim, const CounterRandom& random) {
  std::vector<double> page(static_cast<size_t>(keys * dim));
  for (int key = 0; key < keys; ++key) {
    for (int c = 0; c < dim; ++c) {
      double x = random.normal(static_cast<uint64_t>((kind == "equal" ? 0 : key) * dim + c));
      if (kind == "sink" && key == 0) x *= 30;
      if (kind == "huge channel" && c == 3) x += 300;
      if (kind == "zero" && key % 2 == 0) x = 0;
      if (kind == "tiny") x *= 1e-6;
      if (kind == "beyond float16" && c == 5 && key == 7) x = 1e7;
      if (kind == "not finite" && c == 5 && key == 7) x = NAN;
      page[static_cast<size_t>(key * dim + c)] = round_to(Dtype::bf16, x);
    }
  }
  return page;
}

PagedCache cache_of(const std::string& kind, int64_t pages, uint64_t seed) {
  PagedCache cache{.page_size = 64, .kv_heads = 2, .head_dim = 64};
  const CounterRandom random(seed);
  for (int64_t page = 0; page < pages; ++page) {
    const std::vector<double> keys = page_of(kind, 64 * 2, 64, random.stream(static_cast<uint64_t>(page)));
    cache.keys.insert(cache.keys.end(), keys.begin(), keys.end());
    cache.table.push_back(static_cast<int32_t>((page + 3) % pages));
  }
  cache.values = page_of("normal", static_cast<int>(pages * 128), 64, random.stream(1000));
  cache.width = pages;
  cache.lengths = {static_cast<int32_t>(pages * 64 - 10)};
  return cache;
}

DecodeInputs inputs_of(const PagedCache& cache, int64_t q_len, uint64_t seed) {
  DecodeInputs inputs{Tensor<double>(cache.batch, 4, q_len, cache.head_dim), {1.5, 1.3, 2, 1.1}, {0.125}};
  const CounterRandom random(seed);
  for (int64_t i = 0; i < inputs.q.size(); ++i)
    inputs.q.data()[i] = round_to(Dtype::bf16, 2.4 * random.normal(static_cast<uint64_t>(i)));
  return inputs;
}

// A pool of T, [pages, kv_heads, page_size, head_dim] with numbers between that nothing may read. What T
// rounds the cache's numbers to is written back to them. Of float8, T is its bits.
template <class T>
class Stored {
 public:
  Stored(const PagedCache& cache, std::vector<double>& numbers, double scale) : scale_(scale) {
    const int64_t size = cache.page_size, heads = cache.kv_heads, dim = cache.head_dim;
    strides_ = {heads * (size * dim + 8) + 8, dim, size * dim + 8};
    stored_.assign(static_cast<size_t>(cache.pages() * strides_[0]), static_cast<T>(77));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      T& to = stored_[static_cast<size_t>(at / (size * heads * dim) * strides_[0] +
                                          at / (heads * dim) % size * strides_[1] +
                                          at / dim % heads * strides_[2] + at % dim)];
      if constexpr (std::is_same_v<T, uint8_t>) {  // some number of its sign, of powers of two
        const double x = numbers[i] / scale;
        const int exponent = std::isnan(x) ? 0 : std::clamp(x == 0 ? -7 : std::ilogb(x), -6, 8);
        to = static_cast<uint8_t>(std::isnan(x) ? 0x7F : (exponent + 7) << 3 | (x < 0 ? 0x80 : 0));
        numbers[i] = std::isnan(x) ? NAN : scale * std::copysign(std::exp2(exponent), x);
      } else {
        to = static_cast<T>(numbers[i]);
        numbers[i] = static_cast<double>(to);
      }
    }
  }

  Pool pool(Element element) const {
    return {element, stored_.data(), strides_[0], strides_[1], strides_[2], scale_};
  }

 private:
  double scale_;
  std::array<int64_t, 3> strides_{};
  std::vector<T> stored_;
};

template <class T>
CacheView view_of(const PagedCache& cache, std::string_view dtype, const Stored<T>& keys,
                  const Stored<T>& values) {
  const Element element = element_from_string(dtype);
  return {.keys = keys.pool(element),
          .values = values.pool(element),
          .pool_pages = cache.pages(),
          .page_size = cache.page_size,
          .kv_heads = cache.kv_heads,
          .head_dim = cache.head_dim,
          .batch = cache.batch,
          .width = cache.width,
          .table = cache.table,
          .lengths = cache.lengths};
}

void check_same(const DecodeRows& found, const DecodeRows& expected) {
  for (size_t i = 0; i < expected.tau.size(); ++i) {
    CAPTURE(i);
    CHECK(found.support[i] == expected.support[i]);
    if (std::isnan(expected.tau[i])) {
      CHECK(std::isnan(found.tau[i]));
      continue;
    }
    CHECK(found.maximum[i] == expected.maximum[i]);
    CHECK(
        (found.tau[i] == expected.tau[i] || found.tau[i] == doctest::Approx(expected.tau[i]).epsilon(1e-12)));
  }
  for (int64_t i = 0; i < expected.out.size(); ++i) {
    const double x = found.out.data()[i], y = expected.out.data()[i];
    REQUIRE((std::isnan(y) ? std::isnan(x) : x == y || x == doctest::Approx(y).epsilon(1e-9)));
  }
}

}  // namespace

TEST_CASE("low-bit pages: float16 and bfloat16 in bits") {
  for (uint32_t half = 0; half < 0x7C00; ++half) {
    const float value = float_of_half(static_cast<uint16_t>(half));
    REQUIRE(half_bits(value) == half);
    REQUIRE(half_bits(-value) == (half | 0x8000));
    if (half == 0) continue;
    const float below = float_of_half(static_cast<uint16_t>(half - 1)), middle = below + (value - below) / 2;
    REQUIRE(half_bits(middle) == half - half % 2);  // ties to even
    REQUIRE(half_bits(std::nextafter(middle, INFINITY)) == half);
    REQUIRE(half_bits(std::nextafter(middle, 0.0f)) == half - 1);
  }
  CHECK(half_bits(65519) == 0x7BFF);
  CHECK(half_bits(65520) == 0x7C00);
  CHECK(half_bits(1e30f) == 0x7C00);
  CHECK(half_bits(INFINITY) == 0x7C00);
  CHECK(std::isnan(float_of_half(half_bits(NAN))));
  const CounterRandom random(5);
  for (uint64_t i = 0; i < 100000; ++i) {
    const float x = std::fabs(from_bits(static_cast<uint32_t>(random.bits(i))));
    if (std::isnan(x)) continue;
    const uint16_t above = bfloat16_above(x);
    REQUIRE(float_of_bfloat16(above) >= x);
    if (above > 0) REQUIRE(float_of_bfloat16(static_cast<uint16_t>(above - 1)) < x);
  }
  CHECK(std::isnan(float_of_bfloat16(bfloat16_above(NAN))));
}

TEST_CASE("low-bit pages: every code has a place of its own, inside the page") {
  for (const int page_size : {16, 64, 256}) {
    for (const int head_dim : {64, 128, 256}) {
      for (const int bits : {4, 8}) {
        const LowBitLayout layout{page_size, head_dim, bits};
        std::set<int> bytes;
        for (int key = 0; key < page_size; ++key) {
          for (int group = 0; group < head_dim / 8; ++group) {
            const int at = layout.group_at(key, group);
            for (int byte = 0; byte < bits; ++byte) bytes.insert(at + byte);
            REQUIRE(at % bits == 0);
          }
        }
        CHECK(static_cast<int>(bytes.size()) == page_size * head_dim * bits / 8);
        CHECK(*bytes.begin() == layout.codes_at());
        CHECK(*bytes.rbegin() == layout.bytes() - 1);
        CHECK(layout.bytes() % 16 == 0);
      }
    }
  }
  std::set<int> nibbles;
  for (int c = 0; c < 8; ++c) nibbles.insert(nibble_of(c));
  CHECK(nibbles.size() == 8);
}

// The kernel's arithmetic: q scaled by a power of two and rounded to float16, q scale rounded again, sums in
// float32.
TEST_CASE("low-bit pages: the screen's score is within the margin, over millions of rows and keys") {
  constexpr int kKeys = 64, kDim = 64, kQueries = 3000;
  uint64_t seed = 1;
  for (const std::string kind : kKinds) {
    for (const int bits : {4, 8}) {
      CAPTURE(kind);
      CAPTURE(bits);
      const CounterRandom random(++seed);
      const std::vector<double> page = page_of(kind, kKeys, kDim, random);
      ChannelCode channels[kDim];
      bool usable = true;
      for (int c = 0; c < kDim; ++c) {
        float low = INFINITY, high = -INFINITY;
        for (int key = 0; key < kKeys; ++key) {
          const auto x = static_cast<float>(page[static_cast<size_t>(key * kDim + c)]);
          usable = usable && std::isfinite(x);
          low = std::fmin(low, x);
          high = std::fmax(high, x);
        }
        channels[c] = ChannelCode(low, high, bits, usable);
      }
      CHECK(usable == (kind != "beyond float16" && kind != "not finite"));
      if (!usable) continue;  // margins are then infinite
      std::vector<float> codes(static_cast<size_t>(kKeys * kDim)), margins(kKeys);
      for (int key = 0; key < kKeys; ++key) {
        MarginSums sums;
        for (int c = 0; c < kDim; ++c) {
          const auto at = static_cast<size_t>(key * kDim + c);
          const int code = channels[c].code(static_cast<float>(page[at]), bits);
          REQUIRE(std::abs(code + 0.5) <= 1 << (bits - 1));
          sums.add(static_cast<float>(page[at]), channels[c], code);
          codes[at] = static_cast<float>(code);
        }
        margins[static_cast<size_t>(key)] = float_of_bfloat16(bfloat16_above(sums.margin(kDim, bits)));
      }
      int64_t outside = 0;
      for (int n = 0; n < kQueries; ++n) {
        float q[kDim], folded[kDim], start = 0, offset = 0, norm = 0, largest = 0;
        double exact_q[kDim], exact_norm = 0;
        for (int c = 0; c < kDim; ++c) {  // queries of every size, some with one channel that dominates
          const auto at = static_cast<uint64_t>(n * kDim + c);
          exact_q[c] = round_to(Dtype::bf16, random.stream(9).normal(at) * std::exp2(n % 40 - 20) *
                                                 (n % 3 == 0 && c % 16 != 3 ? std::exp2(-(c % 24)) : 1));
          largest = std::fmax(largest, static_cast<float>(std::fabs(exact_q[c])));
          exact_norm += exact_q[c] * exact_q[c];
        }
        const float factor = std::exp2(6 - static_cast<float>(std::ilogb(largest)));
        for (int c = 0; c < kDim; ++c) {
          q[c] = float_of_half(half_bits(static_cast<float>(exact_q[c]) * factor));
          folded[c] = float_of_half(half_bits(q[c] * channels[c].scale));
          start += q[c] * channels[c].zero;
          if (bits == 4) {  // stored codes are 8 too large, and those of high nibbles are 16 times as large
            if (c % 4 >= 2) folded[c] = 16 * float_of_half(half_bits(folded[c] / 16));
            offset -= 8 * folded[c];
          }
          norm += static_cast<float>(exact_q[c]) * factor * static_cast<float>(exact_q[c]) * factor;
        }
        norm = std::sqrt(norm) * (1 + 0x1p-18f);
        REQUIRE(norm >= std::sqrt(exact_norm) * factor);
        for (int key = 0; key < kKeys; ++key) {
          float sum = start + offset;
          double exact = 0;
          for (int c = 0; c < kDim; ++c) {
            const auto at = static_cast<size_t>(key * kDim + c);
            sum += folded[c] * (codes[at] + (bits == 4 ? 8.0f : 0.0f));
            exact += exact_q[c] * page[at];
          }
          outside += std::abs(exact * factor - sum) > norm * margins[static_cast<size_t>(key)] ? 1 : 0;
        }
      }
      CHECK(outside == 0);
    }
  }
}

TEST_CASE("decode: a screened step has the oracle's rows and reads few keys") {
  for (const std::string kind : kKinds) {
    for (const int bits : {4, 8}) {
      for (const int64_t q_len : {1, 3}) {
        CAPTURE(kind);
        CAPTURE(bits);
        const PagedCache cache = cache_of(kind, 20, 3);
        const DecodeInputs inputs = inputs_of(cache, q_len, 4);
        DecodeWork work;
        const DecodeRows expected = decode(cache, inputs),
                         screened = decode_screened(cache, inputs, bits, work);
        for (size_t i = 0; i < expected.tau.size(); ++i) {
          if (std::isnan(expected.tau[i])) {
            CHECK(std::isnan(screened.tau[i]));
            continue;
          }
          CHECK(screened.support[i] == expected.support[i]);
          CHECK(screened.tau[i] == doctest::Approx(expected.tau[i]).epsilon(1e-12));
          CHECK(screened.maximum[i] == expected.maximum[i]);
        }
        for (int64_t i = 0; i < expected.out.size(); ++i) {
          if (!std::isnan(expected.out.data()[i]))
            REQUIRE(screened.out.data()[i] == doctest::Approx(expected.out.data()[i]).epsilon(1e-9));
        }
        CHECK(work.screened == 2 * (17 * 64 - 16));
        CHECK(work.rescored <= work.candidates);
        CHECK(work.candidates <= work.screened);
        if (kind == "normal" && bits == 8 && q_len == 1) CHECK(work.rescored < work.screened / 2);
      }
    }
  }
}

TEST_CASE("decode: a step over pools of any type and strides has the oracle's rows") {
  using Types = std::tuple<double, float, Eigen::half, Eigen::bfloat16, uint8_t>;
  constexpr const char* kNames[] = {"float64", "float32", "float16", "bfloat16", "float8_e4m3fn"};
  const auto with_type = [&]<size_t kType>() {
    using T = std::tuple_element_t<kType, Types>;
    constexpr bool kIsFp8 = std::is_same_v<T, uint8_t>;
    for (const std::string kind : kKinds) {
      for (const int64_t window : {0, 70}) {
        CAPTURE(kind);
        CAPTURE(kNames[kType]);
        CAPTURE(window);
        PagedCache cache = cache_of(kind, 5, 3);
        cache.table[2] = -1;
        Stored<T> keys(cache, cache.keys, kIsFp8 ? 0.02 : 1), values(cache, cache.values, kIsFp8 ? 0.05 : 1);
        DecodeInputs inputs = inputs_of(cache, 3, 4);
        inputs.window = window;
        inputs.sinks = window > 0 ? 3 : 0;
        DecodeWork work;
        const DecodeRows expected = decode(cache, inputs),
                         found = decode_step(view_of(cache, kNames[kType], keys, values), inputs, &work);
        check_same(found, expected);
        if (kind != "normal") continue;
        const int64_t support = std::accumulate(expected.support.begin(), expected.support.end(), int64_t{0});
        CHECK(work.screened > 2 * support);
        CHECK(work.rescored >= support);
        CHECK(work.rescored <= support + 2);  // floats keep the others out
      }
    }
  };
  [&]<size_t... kTypes>(std::index_sequence<kTypes...>) {
    (with_type.template operator()<kTypes>(), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<Types>>{});
}

TEST_CASE("decode: a step over queries and keys of any size has the oracle's rows") {
  for (const double alpha : {1.01, 1.5, 2.0, 3.0}) {
    for (const double of_queries : {1e-60, 1e-30, 1.0, 1e15, 1e60}) {
      for (const double of_keys : {1e-60, 1e-25, 1.0, 1e20, 1e60}) {
        CAPTURE(alpha);
        CAPTURE(of_queries);
        CAPTURE(of_keys);
        PagedCache cache = cache_of("sink", 3, 3);
        for (double& x : cache.keys) x *= of_keys;
        Stored<double> keys(cache, cache.keys, 1), values(cache, cache.values, 1);
        DecodeInputs inputs = inputs_of(cache, 1, 4);
        for (int64_t i = 0; i < inputs.q.size(); ++i) inputs.q.data()[i] *= of_queries;
        inputs.alpha = {alpha};
        for (const double scale : {0.125, 1 / (of_queries * of_keys)}) {
          CAPTURE(scale);
          inputs.scale = {scale};
          check_same(decode_step(view_of(cache, "float64", keys, values), inputs), decode(cache, inputs));
        }
      }
    }
  }
}

TEST_CASE("decode: a step where floats cannot tell keys apart has the oracle's rows") {
  // Two channels of each key cancel: floats round their sum by more than the scores differ.
  for (const double size : {1e3, 1e5, 1e7}) {
    for (const double scale : {0.125, -0.125}) {
      CAPTURE(size);
      CAPTURE(scale);
      PagedCache cache = cache_of("normal", 5, 3);
      const CounterRandom random(11);
      for (size_t i = 0; i < cache.keys.size(); i += 64) {
        const double x = size * random.normal(i);
        cache.keys[i] += x;
        cache.keys[i + 1] -= x;
      }
      DecodeInputs inputs = inputs_of(cache, 2, 4);
      for (int64_t i = 0; i < inputs.q.size(); i += 64) inputs.q.data()[i] = inputs.q.data()[i + 1];
      inputs.scale = {scale};
      Stored<double> keys(cache, cache.keys, 1), values(cache, cache.values, 1);
      check_same(decode_step(view_of(cache, "float64", keys, values), inputs), decode(cache, inputs));
    }
  }
}

TEST_CASE("decode: what a float8 stands for") {
  const uint8_t bits[] = {0x00, 0x01, 0x08, 0x38, 0x7E, 0x80, 0xB8, 0x7F};
  const Pool pool{.element = Element::e4m3, .data = bits, .token_stride = 8, .scale = 0.5};
  double numbers[8];
  pool.read(0, 0, 0, 1, 8, numbers);
  const double expected[] = {0, 0x1p-10, 0x1p-7, 0.5, 224, -0.0, -0.5};
  for (int i = 0; i < 7; ++i) CHECK(numbers[i] == expected[i]);
  CHECK(std::isnan(numbers[7]));
  CHECK_THROWS_WITH_AS(element_from_string("int8"),
                       "decode takes float64, float32, float16, bfloat16 and float8_e4m3fn, not int8",
                       InvalidArgument);
}

TEST_CASE("decode: the oracle is attention over the keys of the sequence's pages") {
  // A cache whose pages are in order is a dense tensor.
  PagedCache cache = cache_of("normal", 3, 8);
  cache.table = {0, 1, 2};
  cache.lengths = {100};
  const DecodeInputs inputs = inputs_of(cache, 1, 9);
  const DecodeRows rows = decode(cache, inputs);
  for (int64_t h = 0; h < 4; ++h) {
    const int64_t kv_head = h / 2;
    std::vector<double> scores;
    for (int64_t key = 0; key < 100; ++key) {
      double sum = 0;
      for (int64_t c = 0; c < 64; ++c)
        sum +=
            inputs.q.view().row(0, h, 0)[c] * cache.keys[static_cast<size_t>((key * 2 + kv_head) * 64 + c)];
      scores.push_back(0.125 * sum);
    }
    const std::vector<double> alphas = {1.5, 1.3, 2, 1.1};
    const EntmaxRow row = entmax(scores, alphas[static_cast<size_t>(h)]);
    CHECK(rows.support[static_cast<size_t>(h)] == row.support);
    CHECK(rows.tau[static_cast<size_t>(h)] == doctest::Approx(row.tau));
    for (int64_t c = 0; c < 64; ++c) {
      double out = 0;
      for (int64_t key = 0; key < 100; ++key)
        out += row.probabilities[static_cast<size_t>(key)] *
               cache.values[static_cast<size_t>((key * 2 + kv_head) * 64 + c)];
      CHECK(rows.out.view().row(0, h, 0)[c] == doctest::Approx(out));
    }
  }
}

TEST_CASE("decode: queries of a step are causal among themselves; holes and empty sequences have no keys") {
  PagedCache cache = cache_of("normal", 4, 5);
  cache.table[1] = -1;
  const DecodeInputs three = inputs_of(cache, 3, 6);
  const DecodeRows together = decode(cache, three);
  for (int64_t i = 0; i < 3; ++i) {
    PagedCache shorter = cache;
    shorter.lengths[0] -= static_cast<int32_t>(2 - i);
    DecodeInputs one = inputs_of(cache, 1, 6);
    for (int64_t h = 0; h < 4; ++h) std::copy_n(three.q.view().row(0, h, i), 64, one.q.row(0, h, 0));
    const DecodeRows alone = decode(shorter, one);
    for (int64_t h = 0; h < 4; ++h)
      CHECK(alone.tau[static_cast<size_t>(h)] == together.tau[static_cast<size_t>(h * 3 + i)]);
  }
  cache.lengths[0] = 0;
  const DecodeRows none = decode(cache, three);
  CHECK(none.tau[0] == INFINITY);
  CHECK(none.maximum[0] == -INFINITY);
  CHECK(none.support[0] == 0);
  CHECK(none.out.data()[0] == 0);
}

TEST_CASE("decode: inputs that do not fit together are refused") {
  const PagedCache good = cache_of("normal", 4, 5);
  const DecodeInputs inputs = inputs_of(good, 1, 6);
  PagedCache cache = good;
  cache.table[2] = 4;
  CHECK_THROWS_WITH_AS(decode(cache, inputs), "decode: page 4 lies outside the pool of 4", InvalidArgument);
  cache = good;
  cache.lengths[0] = 257;
  CHECK_THROWS_WITH_AS(decode(cache, inputs), "decode: a length must lie in 0 ... 256, not be 257",
                       InvalidArgument);
  DecodeInputs other = inputs_of(good, 1, 6);
  other.alpha = {1.5, 1.5};
  CHECK_THROWS_AS(decode(good, other), InvalidArgument);
  DecodeWork work;
  CHECK_THROWS_WITH_AS(decode_screened(good, inputs, 5, work), "a screen has 4 or 8 bits, not 5",
                       InvalidArgument);
}
