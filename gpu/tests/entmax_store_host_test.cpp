// The store's layout and its key. Needs no device.

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "gpu/entmax/support/store.h"

using namespace splash;
using namespace splash::gpu::entmax;

namespace {

uintptr_t address(const void* part) {
  return reinterpret_cast<uintptr_t>(part);
}

AttentionSpec some_spec() {
  AttentionSpec spec;
  spec.shape = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 120, .head_dim = 64};
  return spec;
}

}  // namespace

TEST_CASE(
    "the parts of a store follow one another inside its bytes, and its capacity is what the bytes hold") {
  std::mt19937_64 random(7);
  const auto up_to = [&random](int64_t most) { return 1 + static_cast<int64_t>(random() % most); };
  for (int trial = 0; trial < 2000; ++trial) {
    AttentionShape shape{
        .batch = up_to(5), .kv_heads = up_to(9), .q_len = up_to(3000), .kv_len = up_to(3000)};
    shape.q_heads = shape.kv_heads * up_to(4);
    const int64_t capacity = trial % 3 == 0 ? 0 : up_to(1 << 20), spare = up_to(StoreSize::kBytesAnEntry) - 1;
    const int64_t heads = shape.batch * shape.q_heads, rows = shape.rows();
    const int64_t bytes = store_bytes(shape, capacity);
    CHECK(bytes == StoreSize::kBytes + StoreSize::kBytesARow * rows + StoreSize::kBytesAHead * heads +
                       StoreSize::kBytesAnEntry * capacity);
    char* const buffer = reinterpret_cast<char*>(uintptr_t{1} << 40);
    const Store store(shape, buffer, bytes + spare);
    CHECK(store.support.capacity == capacity);
    std::vector<std::pair<uintptr_t, int64_t>> parts{{address(store.header), sizeof(StoreHeader)},
                                                     {address(store.alphas), 4 * heads},
                                                     {address(store.tau), 4 * rows},
                                                     {address(store.support.counts), 4 * rows},
                                                     {address(store.support.offsets), 8 * rows},
                                                     {address(store.unstored_counts), 4 * heads},
                                                     {address(store.unstored_queries), 4 * rows},
                                                     {address(store.support.columns), 4 * capacity},
                                                     {address(store.support.excess), 4 * capacity}};
    std::ranges::sort(parts);
    uintptr_t end = address(buffer);
    for (const auto& [begin, size] : parts) {
      REQUIRE(begin >= end);
      CHECK(begin % StoreSize::kPart == 0);
      end = begin + static_cast<uintptr_t>(size);
    }
    CHECK(end <= address(buffer) + static_cast<uintptr_t>(bytes));
    CHECK(address(store.support.used) == address(&store.header->used));
  }
}

TEST_CASE("bytes that hold no store of the problem are refused") {
  const AttentionShape shape = some_spec().shape;
  const int64_t least = store_bytes(shape, 0);
  CHECK(Store(shape, nullptr, least).support.capacity == 0);
  try {
    const Store store(shape, nullptr, least - 1);
    FAIL("it was taken");
  } catch (const InvalidArgument& error) {
    CHECK(std::string(error.what()) == "the store has " + std::to_string(least - 1) +
                                           " bytes; for B 2, H 4/2, N 100/120, d 64 it must have at least " +
                                           std::to_string(least) + ": it is not what forward left");
  }
}

TEST_CASE("each thing that backward depends on changes the store's key") {
  const AttentionSpec spec = some_spec();
  std::vector<uint64_t> keys{store_key(spec, Dtype::bf16), store_key(spec, Dtype::f16)};
  const auto with = [&](auto change) {
    AttentionSpec other = spec;
    change(other);
    keys.push_back(store_key(other, Dtype::bf16));
  };
  with([](AttentionSpec& s) { s.shape.batch = 4, s.shape.q_heads = 2; });  // the number of rows stays
  with([](AttentionSpec& s) { s.shape.kv_heads = 1; });
  with([](AttentionSpec& s) { std::swap(s.shape.q_len, s.shape.kv_len); });
  with([](AttentionSpec& s) { s.shape.kv_len = 121; });
  with([](AttentionSpec& s) { s.shape.head_dim = 32; });
  with([](AttentionSpec& s) { s.scale = 0.1; });
  with([](AttentionSpec& s) { s.normalizer.alpha = {1.5, 1.5, 1.5, 1.5}; });
  with([](AttentionSpec& s) { s.mask.causal = true; });
  with([](AttentionSpec& s) { s.selection.kind = SelectionKind::top_k_row; });
  with([](AttentionSpec& s) {
    s.selection.kind = SelectionKind::top_k_row;
    s.selection.k_keep = 9;
  });
  with([](AttentionSpec& s) {
    s.mask.q_positions.resize(100);
    s.mask.k_positions.resize(120);
  });
  with([](AttentionSpec& s) { s.mask.cu_seqlens_q = {0, 100}, s.mask.cu_seqlens_k = {0, 120}; });
  with([](AttentionSpec& s) { s.mask.cu_seqlens_q = {0, 50, 100}, s.mask.cu_seqlens_k = {0, 60, 120}; });
  with([](AttentionSpec& s) { s.mask.cu_seqlens_q = {0, 50, 100}, s.mask.cu_seqlens_k = {0, 61, 120}; });
  std::ranges::sort(keys);
  CHECK(std::ranges::adjacent_find(keys) == keys.end());
  AttentionSpec same = spec;
  same.scale = 1.0 / 8;  // the scale that 0 means
  CHECK(store_key(same, Dtype::bf16) == store_key(spec, Dtype::bf16));
}
