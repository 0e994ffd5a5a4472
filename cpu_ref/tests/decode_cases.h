#pragma once
// Caches with keys that are hard to store, pools of any element type, and the comparison with the oracle.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "core/dtype.h"
#include "core/random.h"
#include "cpu_ref/decode/decode.h"
#include "cpu_ref/decode/low_bit.h"

namespace splash::cpu_ref::test {

// A page of keys [page_size][head_dim] that are hard to store, by kind.
inline constexpr const char* kDecodeKinds[] = {"normal", "sink", "equal",          "huge channel",
                                               "zero",   "tiny", "beyond float16", "not finite"};

inline std::vector<double> page_of(const std::string& kind, int keys, int dim, const CounterRandom& random) {
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

inline PagedCache cache_of(const std::string& kind, int64_t pages, uint64_t seed, int64_t page_size = 64,
                           int64_t head_dim = 64) {
  PagedCache cache{.page_size = page_size, .kv_heads = 2, .head_dim = head_dim};
  const CounterRandom random(seed);
  const auto rows = static_cast<int>(2 * page_size), dim = static_cast<int>(head_dim);
  for (int64_t page = 0; page < pages; ++page) {
    const std::vector<double> keys = page_of(kind, rows, dim, random.stream(static_cast<uint64_t>(page)));
    cache.keys.insert(cache.keys.end(), keys.begin(), keys.end());
    cache.table.push_back(static_cast<int32_t>((page + 3) % pages));
  }
  cache.values = page_of("normal", static_cast<int>(pages) * rows, dim, random.stream(1000));
  cache.width = pages;
  cache.lengths = {static_cast<int32_t>(pages * page_size - 10)};
  return cache;
}

inline DecodeInputs inputs_of(const PagedCache& cache, int64_t q_len, uint64_t seed) {
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

// A view's low-bit copies, filled up to its lengths.
class FilledCopies {
 public:
  FilledCopies(CacheView& view, int bits)
      : bytes(static_cast<size_t>(
                  low_bit_bytes(view.pool_pages, view.page_size, view.kv_heads, view.head_dim, bits)),
              0xFF) {
    view.bits = bits;
    view.low_bit = bytes.data();
    fill_low_bit(view, {}, view.width, bytes.data());
  }

  std::vector<uint8_t> bytes;  // [pages, kv_heads], of a LowBitLayout
};

inline void check_same(const DecodeRows& found, const DecodeRows& expected) {
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

}  // namespace splash::cpu_ref::test
