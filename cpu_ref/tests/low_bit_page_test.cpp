// The low-bit copies of pages: their layout and their margins.

#include "core/low_bit_page.h"

#include <bit>
#include <cmath>
#include <set>

#include <doctest/doctest.h>

#include "cpu_ref/tests/decode_cases.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

float from_bits(uint32_t bits) {
  return std::bit_cast<float>(bits);
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
  for (const std::string kind : kDecodeKinds) {
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
