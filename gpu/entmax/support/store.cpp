#include "gpu/entmax/support/store.h"

#include <bit>
#include <cstddef>
#include <string>

#include "core/error.h"
#include "core/round.h"

namespace splash::gpu::entmax {
namespace {

int64_t fixed_bytes(const AttentionShape& s) {
  return StoreSize::kBytes + StoreSize::kBytesARow * s.rows() + StoreSize::kBytesAHead * s.batch * s.q_heads;
}

}  // namespace

int64_t store_bytes(const AttentionShape& shape, int64_t capacity) {
  return fixed_bytes(shape) + StoreSize::kBytesAnEntry * capacity;
}

uint64_t store_key(const AttentionSpec& spec, Dtype dtype) {
  uint64_t key = 0xCBF29CE484222325u;  // FNV-1a (Fowler, Noll, Vo), eight bytes at a time
  const auto add = [&key](auto value) {
    key = (key ^ static_cast<uint64_t>(value)) * 0x100000001B3u;
    key ^= key >> 32;
  };
  const AttentionShape& s = spec.shape;
  for (const int64_t extent : {s.batch, s.q_heads, s.kv_heads, s.q_len, s.kv_len, s.head_dim}) add(extent);
  add(dtype);
  add(std::bit_cast<uint64_t>(spec.score_scale()));
  add(std::bit_cast<uint64_t>(spec.softcap));
  add(std::bit_cast<uint64_t>(spec.dropout.rate));
  add(spec.bias.distances);
  add(spec.bias.first);
  add(spec.normalizer.alpha.size());
  add(spec.selection.kind);
  add(spec.selection.kind == SelectionKind::all ? 0 : spec.selection.k_keep);
  add(spec.selection.head_k_keep.size());
  add(spec.mask.causal);
  add(spec.mask.window);
  add(spec.mask.q_positions.size());
  add(spec.mask.pairs.size());
  for (const int64_t begin : spec.mask.cu_seqlens_q) add(begin);
  for (const int64_t begin : spec.mask.cu_seqlens_k) add(begin);
  return key;
}

Store::Store(const AttentionShape& shape, void* buffer, int64_t bytes)
    : heads(shape.batch * shape.q_heads), rows(shape.rows()) {
  const int64_t least = fixed_bytes(shape);
  if (bytes < least) {
    throw InvalidArgument("the store has " + std::to_string(bytes) + " bytes; for " + to_string(shape) +
                          " it must have at least " + std::to_string(least) +
                          ": it is not what forward left");
  }
  support.capacity = (bytes - least) / StoreSize::kBytesAnEntry;
  int64_t place = 0;
  const auto take = [&]<class Part>(Part*& part, int64_t count) {
    part = reinterpret_cast<Part*>(reinterpret_cast<uintptr_t>(buffer) + static_cast<uintptr_t>(place));
    place += round_up(count * static_cast<int64_t>(sizeof(Part)), StoreSize::kPart);
  };
  take(header, 1);
  take(alphas, heads);
  take(tau, rows);
  take(support.counts, rows);
  take(support.offsets, rows);
  take(unstored_counts, heads);
  take(unstored_queries, rows);
  take(support.columns, support.capacity);
  take(support.excess, support.capacity);
  support.used = reinterpret_cast<unsigned long long*>(reinterpret_cast<uintptr_t>(header) +
                                                       offsetof(StoreHeader, used));
}

StoreHeader empty_header(const Store& store, uint64_t key) {
  return {.problem = key, .capacity = store.support.capacity, .used = 0};
}

}  // namespace splash::gpu::entmax
