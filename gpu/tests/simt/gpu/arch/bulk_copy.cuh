#pragma once
// gpu/arch/bulk_copy.cuh on the CPU. Tiles have 64 columns of 16 bits; their rows are contiguous and not
// swizzled.

#include <cuda.h>

namespace splash::gpu::arch {

// What a CUtensorMap holds here: a tensor [heads, length, dim], and the number of rows of its tiles.
struct TensorOnCpu {
  const uint16_t* data;
  int heads, length, dim, tile_rows;

  CUtensorMap map() const {
    CUtensorMap map{};
    std::memcpy(static_cast<void*>(&map), this, sizeof *this);
    return map;
  }
};

inline void fence_async_proxy() {}

inline void bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 || bytes % 16 != 0)
    simt::fail("loads bytes that are not aligned");
  std::memset(shared, 0xFF, bytes);
  simt::start_load(barrier, bytes, [=] { std::memcpy(shared, global, bytes); });
}

inline void tensor_load(void* shared, const CUtensorMap* map, uint64_t* barrier, int x, int y, int z) {
  TensorOnCpu tensor{};
  std::memcpy(&tensor, static_cast<const void*>(map), sizeof tensor);
  if (reinterpret_cast<uintptr_t>(shared) % 1024 != 0)
    simt::fail("loads a tile to an address that is not aligned");
  const int bytes = 128 * tensor.tile_rows;
  std::memset(shared, 0xFF, static_cast<size_t>(bytes));
  simt::start_load(barrier, bytes, [=] {
    auto* to = static_cast<uint16_t*>(shared);
    for (int row = y; row < y + tensor.tile_rows; ++row) {
      for (int column = x; column < x + 64; ++column, ++to) {
        const bool inside = row < tensor.length && column < tensor.dim && z < tensor.heads;
        *to = inside ? tensor.data[(int64_t{z} * tensor.length + row) * tensor.dim + column] : uint16_t{0};
      }
    }
  });
}

}  // namespace splash::gpu::arch
