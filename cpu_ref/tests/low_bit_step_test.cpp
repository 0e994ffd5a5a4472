// decode_step by low-bit copies: the oracle's rows, whatever the copies let through.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include <Eigen/Core>
#include <doctest/doctest.h>

#include "core/low_bit_page.h"
#include "cpu_ref/decode/low_bit.h"
#include "cpu_ref/tests/decode_cases.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

// The margins of all copies, times `factor`.
void scale_margins(std::vector<uint8_t>& bytes, const LowBitLayout& layout, float factor) {
  for (size_t page = 0; page < bytes.size(); page += static_cast<size_t>(layout.bytes())) {
    for (int key = 0; key < layout.page_size; ++key) {
      uint8_t* at = bytes.data() + page + layout.margins_at() + 2 * key;
      uint16_t margin = 0;
      std::memcpy(&margin, at, 2);
      margin = bfloat16_above(factor * float_of_bfloat16(margin));
      std::memcpy(at, &margin, 2);
    }
  }
}

}  // namespace

TEST_CASE("low-bit steps: pools of any type, keys of any kind, holes, windows and several queries") {
  const auto with_type = [&]<class T>(const char* name) {
    for (const std::string kind : kDecodeKinds) {
      for (const int bits : {4, 8}) {
        for (const int64_t window : {0, 150}) {
          CAPTURE(kind);
          CAPTURE(name);
          CAPTURE(bits);
          CAPTURE(window);
          PagedCache cache = cache_of(kind, 6, 3);
          cache.table[2] = -1;
          const Stored<T> keys(cache, cache.keys, 1), values(cache, cache.values, 1);
          CacheView view = view_of(cache, name, keys, values);
          const FilledCopies copies(view, bits);
          DecodeInputs inputs = inputs_of(cache, 3, 4);
          inputs.window = window;
          inputs.sinks = window > 0 ? 3 : 0;
          DecodeWork work;
          const DecodeRows expected = decode(cache, inputs), found = decode_step(view, inputs, &work);
          check_same(found, expected);
          const int64_t full = window > 0 ? 3 : 4;  // pages; the last one is open
          const int64_t heads =
              kind == "beyond float16" || kind == "not finite" ? 1 : 2;  // the other's pages are unusable
          CHECK(work.by_copies == heads * full * 64);
          if (kind != "normal") continue;
          const int64_t support =
              std::accumulate(expected.support.begin(), expected.support.end(), int64_t{0});
          CHECK(work.rescored >= support);
          CHECK(work.rescored <= support + 2);
          CHECK(work.candidates < work.screened);
        }
      }
    }
  };
  with_type.template operator()<float>("float32");
  with_type.template operator()<Eigen::half>("float16");
  with_type.template operator()<Eigen::bfloat16>("bfloat16");
  with_type.template operator()<double>("float64");
}

TEST_CASE("low-bit steps: no key of the support is excluded, over many rows; without margins some are") {
  int64_t rows_without_margins = 0;
  for (const auto& size : {std::pair{16, 64}, {64, 128}, {256, 64}, {32, 256}}) {
    const int page_size = size.first, head_dim = size.second;
    for (const int bits : {4, 8}) {
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        CAPTURE(page_size);
        CAPTURE(head_dim);
        CAPTURE(bits);
        CAPTURE(seed);
        const char* kind = seed % 2 == 1 ? "normal" : seed == 2 ? "huge channel" : "sink";
        PagedCache cache = cache_of(kind, 1536 / page_size, seed, page_size, head_dim);
        const Stored<Eigen::bfloat16> keys(cache, cache.keys, 1), values(cache, cache.values, 1);
        CacheView view = view_of(cache, "bfloat16", keys, values);
        FilledCopies copies(view, bits);
        DecodeInputs inputs = inputs_of(cache, 8, seed + 100);  // 32 rows
        inputs.scale = {std::exp2(static_cast<double>(seed) - 4.5)};
        const DecodeRows expected = decode(cache, inputs);
        DecodeWork work;
        check_same(decode_step(view, inputs, &work), expected);
        CHECK(work.by_copies >= 2 * (1536 - 256));
        scale_margins(copies.bytes, {page_size, head_dim, bits}, 0);
        const DecodeRows found = decode_step(view, inputs);
        for (size_t i = 0; i < expected.tau.size(); ++i)
          rows_without_margins += found.support[i] != expected.support[i] ? 1 : 0;
      }
    }
  }
  CHECK(rows_without_margins > 5);
}

TEST_CASE("low-bit steps: pages that were never filled, and keys outside of the lengths") {
  PagedCache cache = cache_of("normal", 6, 3);
  for (size_t c = 0; c < 64; ++c) {  // behind the end of the last page, and in a page that nobody has
    cache.keys[static_cast<size_t>((2 * 64 + 63) * 2 * 64) + c] = NAN;
    cache.keys[static_cast<size_t>((1 * 64 + 5) * 2 * 64) + c] = INFINITY;
  }
  cache.table[4] = -1;  // page 1
  const Stored<float> keys(cache, cache.keys, 1), values(cache, cache.values, 1);
  CacheView view = view_of(cache, "float32", keys, values);
  FilledCopies copies(view, 4);
  const DecodeInputs inputs = inputs_of(cache, 1, 4);
  const DecodeRows expected = decode(cache, inputs);
  DecodeWork work;
  check_same(decode_step(view, inputs, &work), expected);
  CHECK(work.by_copies == 2 * 4 * 64);
  std::ranges::fill(copies.bytes, 0xFF);
  check_same(decode_step(view, inputs, &work), expected);
  CHECK(work.by_copies == 0);
  view.low_bit = nullptr;
  view.bits = 0;
  check_same(decode_step(view, inputs, &work), expected);
}

TEST_CASE("low-bit steps: keys that copies let through and floats cannot tell apart") {
  // Two channels of every 16th key cancel, and floats round their sum by as much as the scores differ. The
  // third channel keeps the other keys far below.
  PagedCache cache = cache_of("normal", 16, 3);
  cache.lengths[0] = 16 * 64;
  const CounterRandom random(11);
  for (size_t key = 0; key < cache.keys.size() / 64; ++key) {
    double* k = cache.keys.data() + 64 * key;
    const bool is_high = key / 2 % 16 == 3;
    k[0] = is_high ? 4000 * random.normal(key) : 0;
    k[1] = -k[0];
    k[2] = is_high ? 0 : -4096;
  }
  const Stored<float> keys(cache, cache.keys, 1), values(cache, cache.values, 1);
  CacheView view = view_of(cache, "float32", keys, values);
  const FilledCopies copies(view, 8);
  DecodeInputs inputs = inputs_of(cache, 8, 4);
  for (int64_t i = 0; i < inputs.q.size(); ++i) inputs.q.data()[i] *= i % 64 < 3 ? 1 : 1e-4;
  for (int64_t i = 0; i < inputs.q.size(); i += 64) {
    inputs.q.data()[i] = inputs.q.data()[i + 1];
    inputs.q.data()[i + 2] = 8;
  }
  for (const double scale : {300.0, 1000.0, 3000.0}) {
    inputs.scale = {scale};
    DecodeWork work;
    check_same(decode_step(view, inputs, &work), decode(cache, inputs));
    CHECK(work.by_copies == 2 * 16 * 64);
    CHECK(work.candidates == 32 * 64);
  }
}

TEST_CASE("low-bit steps: a page that is open again is read in full, whatever its copy says") {
  PagedCache cache = cache_of("normal", 6, 3);
  Stored<float> keys(cache, cache.keys, 1);
  const Stored<float> values(cache, cache.values, 1);
  CacheView view = view_of(cache, "float32", keys, values);
  const FilledCopies copies(view, 8);
  cache.lengths[0] = view.lengths[0] = 4 * 64 + 20;  // of page 1
  for (size_t i = 64 * 128; i < size_t{64 * 128 + 20 * 128}; ++i) cache.keys[i] *= 3;
  const Stored<float> others(cache, cache.keys, 1);
  view.keys = others.pool(Element::f32);
  const DecodeInputs inputs = inputs_of(cache, 2, 4);
  DecodeWork work;
  check_same(decode_step(view, inputs, &work), decode(cache, inputs));
  CHECK(work.by_copies == 2 * 4 * 64);
}

TEST_CASE("low-bit steps: broad rows read all keys") {
  PagedCache cache = cache_of("normal", 10, 3);
  const Stored<float> keys(cache, cache.keys, 1), values(cache, cache.values, 1);
  CacheView view = view_of(cache, "float32", keys, values);
  const FilledCopies copies(view, 4);
  DecodeInputs inputs = inputs_of(cache, 2, 4);
  for (const double scale : {1e-30, 1e-3, 0.05, -0.125, 0.0}) {
    CAPTURE(scale);
    inputs.scale = {0.125, scale, 0.125, scale};
    check_same(decode_step(view, inputs), decode(cache, inputs));
  }
}

TEST_CASE("low-bit steps: sequences of any length, and queries of any size") {
  PagedCache cache = cache_of("normal", 12, 3, 16);
  cache.batch = 4;
  cache.width = 3;
  const Stored<Eigen::half> keys(cache, cache.keys, 1), values(cache, cache.values, 1);
  for (const auto& lengths : {std::vector<int32_t>{0, 1, 16, 48}, {15, 17, 31, 32}, {33, 47, 2, 3}}) {
    cache.lengths = lengths;
    CacheView view = view_of(cache, "float16", keys, values);
    const FilledCopies copies(view, 8);
    for (const double size : {0.0, 1e-60, 1e-12, 1.0, 1e12, 1e60}) {
      for (const double alpha : {1.01, 1.5, 2.0}) {
        CAPTURE(size);
        CAPTURE(alpha);
        DecodeInputs inputs = inputs_of(cache, 2, 4);
        inputs.alpha = {alpha};
        for (int64_t i = 0; i < inputs.q.size(); ++i) inputs.q.data()[i] *= size;
        check_same(decode_step(view, inputs), decode(cache, inputs));
      }
    }
  }
}
