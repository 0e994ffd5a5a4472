#pragma once
// This folder: a call's arguments in device memory. Masks as tables (here), alphas that only the device knows
// (alphas.h), and the arguments of a variant's launch (variant_arguments.h).
//
// A mask as kernels read it: the tables of core/mask.h in device memory, which the caller owns. A mask that
// is only causal, with or without a window, needs none. Compiles without nvcc.
//
//   const MaskTables tables(spec);
//   DeviceBuffer buffer(stream, tables.bytes());
//   buffer.upload(tables.data(), tables.bytes());
//   const DeviceMask mask = tables.at(buffer.data());

#include <cstdint>
#include <vector>

#include "core/attention_spec.h"

namespace splash::gpu::entmax {

// Addresses in device memory; a table is null where the mask has no such part.
struct DeviceMask {
  // Packed sequences: [q_len, 2]. Query i sees the keys from ranges[2 i] to below ranges[2 i + 1]: those of
  // its own sequence, cut off by a causal mask and a window. The same for all heads.
  const int32_t* ranges = nullptr;
  // Query i sees key j where k_positions[j] <= q_positions[i]: [q_tables, q_len], [k_tables, kv_len].
  const int32_t *q_positions = nullptr, *k_positions = nullptr;
  int q_tables = 1, k_tables = 1;  // 1, batch, or batch * q_heads
  // Query i sees key j where its bit is set (core/pair_words.h): [pair_tables, q_len, words]. Portable path
  // only.
  const uint64_t* pairs = nullptr;
  int pair_tables = 1;
};

// The tables of one spec on the host: pairs, ranges, q_positions, k_positions, one after the other, each only
// where the mask has it. Positions that do not fit 32 bits are replaced by ranks, which compare alike.
class MaskTables {
 public:
  explicit MaskTables(const AttentionSpec& spec);  // spec has passed validate()

  const int32_t* data() const { return values_.data(); }
  int64_t bytes() const { return static_cast<int64_t>(values_.size() * sizeof(int32_t)); }
  DeviceMask at(const void* copy) const;  // copy: data() copied to device memory, 8-byte aligned

 private:
  std::vector<int32_t> values_;
  int64_t pairs_ = 0, ranges_ = 0, q_positions_ = 0, k_positions_ = 0;  // how many values each
  int q_tables_ = 1, k_tables_ = 1, pair_tables_ = 1;
};

}  // namespace splash::gpu::entmax
