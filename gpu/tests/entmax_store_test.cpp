// A store in device memory: what forward starts, what backward finds, and what happens to a store that
// forward did not write.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/support/store.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::entmax;

namespace {

struct Case {
  Case() {
    spec.shape = {.batch = 3, .q_heads = 4, .kv_heads = 2, .q_len = 700, .kv_len = 900, .head_dim = 64};
    buffer = DeviceBuffer(stream, store_bytes(spec.shape, 5000));
    buffer.fill(0xFF);
  }
  Store store() const { return {spec.shape, buffer.data(), buffer.bytes()}; }
  template <class T>
  std::vector<T> read(const T* part, int64_t count) const {
    std::vector<char> all(static_cast<size_t>(buffer.bytes()));
    buffer.download(all.data(), buffer.bytes());
    std::vector<T> values(static_cast<size_t>(count));
    const auto place = reinterpret_cast<uintptr_t>(part) - reinterpret_cast<uintptr_t>(buffer.data());
    std::memcpy(values.data(), all.data() + place, values.size() * sizeof(T));
    return values;
  }

  AttentionSpec spec;
  Stream stream;
  DeviceBuffer buffer;
};

template <class T>
bool all_are(const std::vector<T>& values, T value) {
  for (const T each : values) {
    if (each != value) return false;
  }
  return true;
}

constexpr const char* kForeign =
    "the store is not what forward left for these inputs; backward takes the store of a forward with the "
    "same "
    "shapes, dtype, mask, scale and k_keep, unchanged";

}  // namespace

TEST_CASE("what forward began backward finds again, and nothing else") {
  SKIP_WITHOUT_GPU();
  const Case c;
  const uint64_t key = store_key(c.spec, Dtype::bf16);
  CHECK_THROWS_WITH_AS(read_store(c.store(), key, c.stream.handle()), kForeign, InvalidArgument);
  begin_store(c.store(), key, c.stream.handle());
  const StoreHeader header = read_store(c.store(), key, c.stream.handle());
  CHECK(header.used == 0);
  CHECK(header.capacity == 5000);
  CHECK(all_are(c.read(c.store().unstored_counts, 12), 0));
  CHECK_THROWS_WITH_AS(read_store(c.store(), store_key(c.spec, Dtype::f16), c.stream.handle()), kForeign,
                       InvalidArgument);
  const Store shorter(c.spec.shape, c.buffer.data(), c.buffer.bytes() - StoreSize::kBytesAnEntry);
  CHECK_THROWS_WITH_AS(read_store(shorter, key, c.stream.handle()), kForeign, InvalidArgument);
}

TEST_CASE("inside a capture a store that is not forward's is emptied, and its gradients become NaN") {
  SKIP_WITHOUT_GPU();
  const Case c;
  const uint64_t key = store_key(c.spec, Dtype::bf16);
  const AttentionShape& s = c.spec.shape;
  DeviceBuffer result(c.stream, s.batch * s.kv_heads * 1000 * 4);
  const auto refused = [&] {
    result.fill(0x11);
    refuse_store(c.store(), s.batch, {{{result.data(), s.kv_heads, 4000}}}, c.stream.handle());
    std::vector<float> values(static_cast<size_t>(result.bytes()) / 4);
    result.download(values.data(), result.bytes());
    c.stream.synchronize();
    size_t nan = 0;
    for (const float value : values) nan += std::isnan(value) ? 1 : 0;
    CHECK((nan == 0 || nan == values.size()));
    return nan > 0;
  };
  begin_store(c.store(), key, c.stream.handle());
  admit_store(c.store(), key, c.stream.handle());
  CHECK_FALSE(refused());
  CHECK(all_are(c.read(c.store().support.offsets, s.rows()), int64_t{-1}));  // still the poison, 0xFF
  CHECK(all_are(c.read(c.store().support.counts, s.rows()), -1));            // untouched, too
  admit_store(c.store(), key + 1, c.stream.handle());
  CHECK(refused());
  CHECK(all_are(c.read(c.store().support.offsets, s.rows()), int64_t{-1}));
  CHECK(all_are(c.read(c.store().support.counts, s.rows()), 0));
  CHECK(all_are(c.read(c.store().unstored_counts, s.batch * s.q_heads), 0));
}
