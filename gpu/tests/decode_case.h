#pragma once
// Cases of decode: caches with random keys and nasty ones, and the comparison with the double oracle.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_fp8.h>
#include <doctest/doctest.h>

#include "core/dtype.h"
#include "core/random.h"
#include "cpu_ref/decode/decode.h"
#include "gpu/decode/decode.h"

namespace splash::gpu::testing {

struct DecodeOptions {
  std::vector<int32_t> lengths{1000, 300};
  int64_t page_size = 64, kv_heads = 2, group = 4, q_len = 1, head_dim = 64;
  double temperature = 2.449;
  std::vector<double> alpha{1.5};
  int bits = 4;
  Dtype dtype = Dtype::bf16;
  bool heads_first = false;  // pools [pages, kv_heads, page_size, head_dim]
  std::string nasty{};       // see nasty_keys
  int window = 0, sinks = 0;
  uint64_t seed = 1;
  bool fp8 = false;  // keys and values; dtype is then the queries'
  float key_scale = 1, value_scale = 1;
};

struct DecodeCase {
  DecodeOptions options;
  cpu_ref::PagedCache cache;
  cpu_ref::DecodeInputs inputs;
};

inline float of_byte(int byte) {
  __nv_fp8_e4m3 element{};
  element.__x = static_cast<__nv_fp8_storage_t>(byte);
  return static_cast<float>(element);
}

// A key's or value's number as the cache has it.
inline double as_stored(const DecodeOptions& o, double x, float scale) {
  if (!o.fp8) return round_to(o.dtype, x);
  return double{static_cast<float>(__nv_fp8_e4m3(static_cast<float>(x / double{scale})))} * double{scale};
}

// All keys are codes exactly, but for one of each page. Its channels lie about half way between two codes, on
// the side of the first query's signs. So its exact score is about 1 above that by codes, and only its own
// margin says so. By codes it is 1 to 3 below the largest of a thousand keys. For caches of one key head.
inline void put_between_codes(DecodeCase& c, const CounterRandom& random) {
  auto& cache = c.cache;
  const int64_t dim = cache.head_dim;
  for (double& x : cache.keys) x = x < 0 ? -1 : 1;
  const double step = 2.0 / ((1 << std::max(c.options.bits, 4)) - 1);
  for (size_t at = 0; at < cache.table.size(); ++at) {
    const int64_t page = cache.table[at], sequence = static_cast<int64_t>(at) / cache.width;
    const double* const q = c.inputs.q.data() + sequence * c.options.group * c.options.q_len * dim;
    double* const key = cache.keys.data() + page * cache.page_elements() +
                        (31 * static_cast<int64_t>(at) + 5) % cache.page_size * dim;
    double square = 0;
    for (int64_t i = 0; i < dim; ++i) square += q[i] * q[i];
    const double largest = 3.1 * std::sqrt(square), score = largest - (1.2 + 2 * random.uniform(at)) * 8;
    for (int64_t i = 0; i < dim; ++i) {
      const double code = std::round((score / square * q[i] + 1) / step) + std::copysign(0.49, q[i]);
      key[i] = std::clamp(code * step - 1, -1.0, 1.0);
    }
  }
}

// Spoils a case's keys or its page table.
inline void spoil(DecodeCase& c, const CounterRandom& random) {
  auto& cache = c.cache;
  const std::string& nasty = c.options.nasty;
  const auto each_key = [&](auto change) {
    for (int64_t key = 0; key < cache.pages() * cache.page_size * cache.kv_heads; ++key)
      change(key, cache.keys.data() + key * cache.head_dim);
  };
  const auto dim = cache.head_dim;
  if (nasty == "sink") {  // the first key of each page, and of a sequence, is long
    each_key([&](int64_t key, double* k) {
      if (key / cache.kv_heads % cache.page_size == 0) {
        for (int64_t i = 0; i < dim; ++i) k[i] *= 4;
      }
    });
  } else if (nasty == "equal") {
    each_key([&](int64_t /*key*/, double* k) { std::copy(cache.keys.data(), cache.keys.data() + dim, k); });
  } else if (nasty == "huge channel") {
    each_key([&](int64_t /*key*/, double* k) { k[3] = k[3] + 200; });
  } else if (nasty == "zero") {
    each_key([&](int64_t key, double* k) {
      if (key % 3 != 0) std::fill(k, k + dim, 0.0);
    });
  } else if (nasty == "unusable") {  // beyond float16's range
    each_key([&](int64_t key, double* k) { k[1] = key % 50 == 0 ? 1e6 : k[1]; });
  } else if (nasty == "small") {
    each_key([&](int64_t /*key*/, double* k) {
      for (int64_t i = 0; i < dim; ++i) k[i] *= 1e-4;
    });
  } else if (nasty == "shared") {  // all sequences share the first one's pages
    for (int64_t b = 1; b < cache.batch; ++b)
      std::copy_n(cache.table.begin(), cache.width, cache.table.begin() + b * cache.width);
  } else if (nasty == "holes") {
    for (size_t i = 0; i < cache.table.size(); ++i) {
      if (random.uniform(i) < 0.3) cache.table[i] = -1;
    }
  } else if (nasty == "bytes") {  // every number that float8 has
    each_key([&](int64_t key, double* k) {
      for (int64_t i = 0; i < dim; ++i) {
        const int byte = static_cast<int>(random.bits(static_cast<uint64_t>(key * dim + i)) & 0xFF);
        k[i] = double{of_byte(byte % 128 == 127 ? 0 : byte)} * double{c.options.key_scale};
      }
    });
  } else if (nasty == "between codes") {
    put_between_codes(c, random);
  } else if (nasty == "nan key") {
    for (int64_t i = 0; i < dim; ++i)
      cache.keys[static_cast<size_t>(cache.page_elements() * cache.table[1] + i)] = NAN;
  } else if (!nasty.empty()) {
    FAIL("no such keys: ", nasty);
  }
}

inline DecodeCase decode_case(const DecodeOptions& o) {
  DecodeCase c{o, {}, {}};
  auto& cache = c.cache;
  const CounterRandom random(o.seed);
  cache.page_size = o.page_size;
  cache.kv_heads = o.kv_heads;
  cache.head_dim = o.head_dim;
  cache.lengths = o.lengths;
  cache.batch = static_cast<int64_t>(o.lengths.size());
  cache.width = (*std::ranges::max_element(o.lengths) + o.page_size - 1) / o.page_size + 1;
  const int64_t pages = cache.batch * cache.width + 1;
  const auto normals = [&](uint64_t stream, int64_t count, double factor) {
    std::vector<double> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = factor * random.stream(stream).normal(i);
    return values;
  };
  cache.keys = normals(1, pages * cache.page_elements(), 1);
  cache.values = normals(2, pages * cache.page_elements(), 1);
  for (int64_t i = 0; i < cache.batch * cache.width;
       ++i)  // every page once, out of order; page 0 is nobody's
    cache.table.push_back(static_cast<int32_t>(1 + i * 7919 % (pages - 1)));
  if (std::vector<int32_t> sorted = cache.table;
      true) {  // 7919 divides no such count, or the pages are in order
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) {
      for (size_t i = 0; i < cache.table.size(); ++i) cache.table[i] = static_cast<int32_t>(1 + i);
    }
  }
  c.inputs.q = Tensor<double>(cache.batch, o.kv_heads * o.group, o.q_len, o.head_dim);
  std::ranges::transform(normals(3, c.inputs.q.size(), o.temperature), c.inputs.q.data(),
                         [&](double x) { return round_to(o.dtype, x); });
  spoil(c, random.stream(7));
  // What no sequence holds is NaN: page 0, and the rest of each table.
  const auto poison = [&](int64_t page, int64_t first_token) {
    for (int64_t i = (page * cache.page_size + first_token) * cache.kv_heads * cache.head_dim;
         i < (page + 1) * cache.page_elements(); ++i)
      cache.keys[static_cast<size_t>(i)] = cache.values[static_cast<size_t>(i)] = NAN;
  };
  poison(0, 0);
  if (o.nasty != "shared") {
    for (int64_t b = 0; b < cache.batch; ++b) {
      const int64_t length = cache.lengths[static_cast<size_t>(b)];
      for (int64_t i = length / o.page_size; i < cache.width; ++i) {
        const int64_t page = cache.table[static_cast<size_t>(b * cache.width + i)];
        if (page >= 0) poison(page, std::max<int64_t>(length - i * o.page_size, 0));
      }
    }
  }
  for (double& x : cache.keys) x = as_stored(o, x, o.key_scale);
  for (double& x : cache.values) x = as_stored(o, x, o.value_scale);
  if (o.nasty == "unusable") {  // else float32 could not hold its scores
    for (int64_t i = 1; i < c.inputs.q.size(); i += o.head_dim) c.inputs.q.data()[i] = 0;
  }
  c.inputs.alpha = o.alpha;
  c.inputs.scale = {std::pow(static_cast<double>(o.head_dim), -0.5)};
  c.inputs.window = o.window;
  c.inputs.sinks = o.sinks;
  return c;
}

// A pool's elements, in units of `scale`, in the order that the case asks for.
template <class T>
std::vector<T> pool_of(const DecodeCase& c, const std::vector<double>& values, float scale) {
  const auto& cache = c.cache;
  std::vector<T> pool(values.size());
  for (int64_t page = 0; page < cache.pages(); ++page) {
    for (int64_t token = 0; token < cache.page_size; ++token) {
      for (int64_t head = 0; head < cache.kv_heads; ++head) {
        const int64_t from = (page * cache.page_size + token) * cache.kv_heads + head;
        const int64_t to =
            c.options.heads_first ? (page * cache.kv_heads + head) * cache.page_size + token : from;
        for (int64_t i = 0; i < cache.head_dim; ++i)
          pool[static_cast<size_t>(to * cache.head_dim + i)] = static_cast<T>(
              static_cast<float>(values[static_cast<size_t>(from * cache.head_dim + i)] / double{scale}));
      }
    }
  }
  return pool;
}

inline decode::PagedTensor paged(const DecodeCase& c, const void* data) {
  const auto& cache = c.cache;
  const int64_t dim = cache.head_dim;
  return c.options.heads_first ? decode::PagedTensor{data, cache.page_elements(), dim, cache.page_size * dim}
                               : decode::PagedTensor{data, cache.page_elements(), cache.kv_heads * dim, dim};
}

// scales: of keys and values, where the kernels find them.
inline decode::Cache device_cache(const DecodeCase& c, const void* keys, const void* values, void* low_bit,
                                  const float* scales = nullptr) {
  return {c.options.dtype,
          static_cast<int>(c.cache.pages()),
          static_cast<int>(c.cache.page_size),
          static_cast<int>(c.cache.kv_heads),
          static_cast<int>(c.cache.head_dim),
          paged(c, keys),
          paged(c, values),
          c.options.bits,
          static_cast<uint8_t*>(low_bit),
          c.options.fp8,
          scales,
          scales == nullptr ? nullptr : scales + 1};
}

// q and out: [batch, q_heads, q_len, head_dim], contiguous.
inline decode::RowTensor rows_of(const DecodeCase& c, void* data) {
  const auto& q = c.inputs.q;
  return {data, q.heads() * q.length() * q.dim(), q.dim(), q.length() * q.dim()};
}

struct StepResults {
  Tensor<double> out;
  std::vector<float> tau, maximum;  // [batch, q_heads, q_len]
  std::vector<int32_t> support, counts;
  int short_warps = 0;  // Step::short_warps
};

inline void check_step_results(const DecodeCase& c, const StepResults& got) {
  const cpu_ref::DecodeRows expected = cpu_ref::decode(c.cache, c.inputs);
  const auto& q = c.inputs.q;
  const double unit = unit_roundoff(c.options.dtype);
  for (int64_t b = 0; b < q.batch(); ++b) {
    for (int64_t h = 0; h < q.heads(); ++h) {
      for (int64_t i = 0; i < q.length(); ++i) {
        CAPTURE(b);
        CAPTURE(h);
        CAPTURE(i);
        const auto at = static_cast<size_t>((b * q.heads() + h) * q.length() + i);
        const double tau = expected.tau[at];
        if (std::isnan(tau)) {
          CHECK(std::isnan(got.tau[at]));
          CHECK(std::isnan(got.out.view().row(b, h, i)[0]));
          continue;
        }
        CHECK(got.support[at] == expected.support[at]);
        if (std::isinf(tau)) {
          CHECK(got.tau[at] == INFINITY);
          CHECK(got.maximum[at] == -INFINITY);
        } else {
          const double tolerance = 1e-5 * (1 + std::abs(expected.maximum[at]));
          CHECK(std::abs(got.tau[at] - tau) <= tolerance);
          CHECK(std::abs(got.maximum[at] - expected.maximum[at]) <= tolerance);
        }
        double largest = 0;
        for (int64_t d = 0; d < q.dim(); ++d) {
          const double want = expected.out.view().row(b, h, i)[d], is = got.out.view().row(b, h, i)[d];
          largest = std::max(largest, std::abs(is - want) - unit * std::abs(want));
          if (!(std::abs(is) < 1e30)) largest = INFINITY;
        }
        CHECK(largest <= 5e-4);
      }
    }
  }
}

inline void check_same_bits(const StepResults& a, const StepResults& b) {
  CHECK(std::memcmp(a.out.data(), b.out.data(), static_cast<size_t>(a.out.size()) * sizeof(double)) == 0);
  CHECK(std::memcmp(a.tau.data(), b.tau.data(), a.tau.size() * sizeof(float)) == 0);
  CHECK(std::memcmp(a.maximum.data(), b.maximum.data(), a.maximum.size() * sizeof(float)) == 0);
  CHECK(a.support == b.support);
}

}  // namespace splash::gpu::testing
