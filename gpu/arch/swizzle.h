#pragma once
// How TMA and wgmma permute a tile in shared memory, so that reading down a column causes no bank conflicts.
// The tile's rows are as long as the swizzle is wide, and the tile starts at a multiple of 1024 bytes.
// Compiles without nvcc.

namespace splash::gpu::arch {

enum class Swizzle { bytes32 = 32, bytes64 = 64, bytes128 = 128 };

// Offset, in bytes from the tile's start, of byte `byte` of row `row`. Within a row the 16-byte chunks are
// permuted; the permutation repeats every 8 rows.
constexpr int swizzled_offset(Swizzle swizzle, int row, int byte) {
  const int width = static_cast<int>(swizzle);
  const int offset = row * width + byte;
  return offset ^ ((offset >> 7) % (width / 16) << 4);
}

}  // namespace splash::gpu::arch
