// decode_step: the oracle's rows from pools of any type, with and without low-bit copies.

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <tuple>

#include <Eigen/Core>
#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/decode/low_bit.h"
#include "cpu_ref/tests/decode_cases.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

TEST_CASE("decode: a step over pools of any type and strides has the oracle's rows") {
  using Types = std::tuple<double, float, Eigen::half, Eigen::bfloat16, uint8_t>;
  constexpr const char* kNames[] = {"float64", "float32", "float16", "bfloat16", "float8_e4m3fn"};
  const auto with_type = [&]<size_t kType>() {
    using T = std::tuple_element_t<kType, Types>;
    constexpr bool kIsFp8 = std::is_same_v<T, uint8_t>;
    for (const std::string kind : kDecodeKinds) {
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
