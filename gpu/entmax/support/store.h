#pragma once
// The store: one buffer in device memory in which forward leaves what backward needs. It describes itself: a
// header identifies the problem, and the buffer's size says how many entries of the support it holds. So
// whoever has the buffer can read it, whatever else has changed since forward wrote it. Compiles without
// nvcc.
//
//   header | alphas | tau | counts | offsets | unstored counts | unstored queries | columns | excess
//
// alphas: those that the kernels took (take_alphas). tau, counts, offsets, columns, excess: support.h.
// unstored: the rows that backward computes as dense products; none where forward stored every row.

#include <array>
#include <cstdint>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/arguments/alphas.h"
#include "gpu/entmax/support/store_header.h"
#include "gpu/entmax/support/support.h"

namespace splash::gpu::entmax {

// A store of `capacity` entries has kBytes + kBytesARow * rows + kBytesAHead * heads + kBytesAnEntry *
// capacity bytes, where heads = batch * q_heads and rows = heads * q_len. The formula is linear in rows,
// heads and capacity, so a compiler that traces a program with symbolic extents can evaluate it, too.
struct StoreSize {
  static constexpr int64_t kPart = 256;  // each of the nine parts begins at a multiple of it
  static constexpr int64_t kBytes = 9 * kPart;
  static constexpr int64_t kBytesARow = 20;
  static constexpr int64_t kBytesAHead = 8;
  static constexpr int64_t kBytesAnEntry = 8;
};

int64_t store_bytes(const AttentionShape& shape, int64_t capacity);

// Tells problems apart: shape, dtype, scale, mask, selection and the number of alphas.
uint64_t store_key(const AttentionSpec& spec, Dtype dtype);

// The addresses of a store's parts. buffer: `bytes` bytes of device memory, 256-byte aligned. Throws
// InvalidArgument where `bytes` is too small even for a store without entries.
struct Store {
  Store(const AttentionShape& shape, void* buffer, int64_t bytes);

  int64_t heads = 0, rows = 0;
  StoreHeader* header = nullptr;
  float* alphas = nullptr;          // [heads]
  float* tau = nullptr;             // [rows]
  Support support{};                // its capacity is what the bytes allow
  int* unstored_counts = nullptr;   // [heads]
  int* unstored_queries = nullptr;  // [rows]

  UnstoredRows unstored() const { return {.rows = {unstored_queries, unstored_counts}, .tau = tau}; }
};

// What the header says before forward.
StoreHeader empty_header(const Store& store, uint64_t key);
// Before forward: enqueues writing it and setting unstored_counts to 0. Throws DeviceError where the launch
// fails.
void begin_store(const Store& store, uint64_t key, StreamHandle stream);

// Waits for forward and reads the header. Throws InvalidArgument where no forward of that problem wrote it,
// DeviceError where the copy fails.
StoreHeader read_store(const Store& store, uint64_t key, StreamHandle stream);

// The next two stand in for read_store during a graph's capture, where the host cannot wait for the header.
// Before backward: where no forward of that problem wrote the store, empties it and makes `used` too large.
void admit_store(const Store& store, uint64_t key, StreamHandle stream);
// After backward: where `used` is more than the capacity, fills the results with NaN, in any dtype.
void refuse_store(const Store& store, int64_t batch, const std::array<HeadResult, 4>& results,
                  StreamHandle stream);

}  // namespace splash::gpu::entmax
