// The oracle of decode, and the screen that low-bit copies allow.

#include "cpu_ref/decode/decode.h"

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/entmax/solver.h"
#include "cpu_ref/tests/decode_cases.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

TEST_CASE("decode: a screened step has the oracle's rows and reads few keys") {
  for (const std::string kind : kDecodeKinds) {
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
