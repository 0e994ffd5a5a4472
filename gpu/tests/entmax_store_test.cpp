// A store in device memory: what forward starts, what backward finds, and what happens to a store that
// forward did not write.

#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "gpu/compute_capability.h"
#include "gpu/device.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/schedule/gather.h"
#include "gpu/entmax/support/notice.h"
#include "gpu/entmax/support/store.h"
#include "gpu/tests/ladder_cases.h"
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

TEST_CASE(
    "every path of forward writes the store's header and tells the host how many entries it wanted to "
    "store") {
  SKIP_WITHOUT_GPU();
  struct Told {
    const char* name;
    int64_t head_dim, k_keep;
    ForwardPath path;
    StoredRows rows;
  };
  for (const Told& told : {Told{"rows left out", 64, 0, ForwardPath::fastest, StoredRows::sparse},
                           Told{"all rows", 64, 0, ForwardPath::fastest, StoredRows::all},
                           Told{"wide heads", 256, 0, ForwardPath::fastest, StoredRows::all},
                           Told{"k_keep", 64, 3, ForwardPath::fastest, StoredRows::all},
                           Told{"portable", 64, 0, ForwardPath::portable, StoredRows::all}}) {
    CAPTURE(told.name);
    AttentionSpec spec;
    spec.shape = {
        .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 700, .kv_len = 900, .head_dim = told.head_dim};
    spec.normalizer.alpha = {1.5};
    if (told.k_keep > 0) spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = told.k_keep};
    const Stream stream;
    const AttentionShape& s = spec.shape;
    std::mt19937_64 random(testing::test_seed());
    const auto drawn = [&](int64_t elements) {
      std::vector<uint16_t> bits(static_cast<size_t>(elements));
      for (uint16_t& x : bits)
        x = static_cast<uint16_t>(0x3F00 | (random() & 0x80FF));  // of bfloat16: 0.5 to 2
      DeviceBuffer buffer(stream, 2 * elements);
      buffer.upload(bits.data(), buffer.bytes());
      stream.synchronize();
      return buffer;
    };
    const int64_t keys = s.batch * s.kv_heads * s.kv_len * s.head_dim;
    const DeviceBuffer q = drawn(s.rows() * s.head_dim), k = drawn(keys), v = drawn(keys);
    const DeviceBuffer out(stream, q.bytes()), workspace(stream, forward_workspace_bytes(spec, Dtype::bf16));
    DeviceBuffer alpha(stream, sizeof(float));
    const float one_and_a_half = 1.5;
    alpha.upload(&one_and_a_half, sizeof(float));
    const bool leaves = told.rows == StoredRows::sparse &&
                        may_leave_rows(spec, choose_path(spec, Dtype::bf16, told.path,
                                                         compute_capability_of(list_devices().at(0)), {}));
    for (const int64_t capacity : {int64_t{100}, s.rows() * 40}) {
      DeviceBuffer buffer(stream, store_bytes(s, capacity));
      buffer.fill(0xFF);
      const Store store(s, buffer.data(), buffer.bytes());
      const uint64_t key = store_key(spec, Dtype::bf16);
      const Notice notice(key);
      ForwardArguments arguments{.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()};
      arguments.alpha = static_cast<const float*>(alpha.data());
      arguments.tau = store.tau;
      arguments.support = store.support;
      arguments.stored = told.rows;
      arguments.unstored_queries = store.unstored_queries;
      arguments.unstored_counts = store.unstored_counts;
      arguments.workspace = workspace.data();
      arguments.stream = stream.handle();
      arguments.path = told.path;
      arguments.notice = notice.word();
      if (leaves) {
        arguments.begin = {store.header, empty_header(store, key)};
      } else {
        begin_store(store, key, stream.handle());
      }
      enqueue_forward(spec, Dtype::bf16, arguments);
      const std::optional<int64_t> entries = notice.entries(stream.handle());
      const StoreHeader header = read_store(store, key, stream.handle());
      REQUIRE(entries.has_value());
      CHECK(*entries == static_cast<int64_t>(header.used));
      CHECK(*entries >= s.rows());  // one a row at least
    }
  }
}

TEST_CASE("a notice whose word another forward took is not believed") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  DeviceBuffer used(stream, sizeof(unsigned long long));
  const auto tell = [&](unsigned long long entries, const NoticeWord& word) {
    used.upload(&entries, sizeof entries);
    tell_entries({.used = static_cast<unsigned long long*>(used.data())}, word, stream.handle());
  };
  std::optional<Notice> first(std::in_place, 1);
  const NoticeWord old = first->word();
  tell(17, old);
  CHECK(first->entries(stream.handle()) == 17);
  CHECK(first->entries(stream.handle()) == 17);  // as often as one asks
  first.reset();
  const Notice second(2);
  REQUIRE(second.word().address == old.address);  // the last one given back is the first one taken
  CHECK(second.problem() == 2);
  tell(18, old);
  CHECK(second.entries(stream.handle()) == std::nullopt);
  tell(19, second.word());
  CHECK(second.entries(stream.handle()) == 19);
  tell(~0ull, second.word());  // of a store that was emptied
  stream.synchronize();        // a notice asks once what it was told: 19 until then
  CHECK(second.entries(stream.handle()) == static_cast<int64_t>(NoticeWord::most()));
}
