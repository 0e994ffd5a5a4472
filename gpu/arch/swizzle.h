#pragma once
// How TMA and wgmma permute a tile of shared memory so that columns meet no bank conflicts. The
// tile's rows are as long as the swizzle is wide and the tile starts at a multiple of 1024 bytes. Compiles
// without nvcc.

namespace splash::gpu::arch {

enum class Swizzle { bytes32 = 32, bytes64 = 64, bytes128 = 128 };

// Where byte `byte` of row `row` lies, from the start of the tile: 16-byte chunks trade places within 8 rows.
constexpr int swizzled_offset(Swizzle swizzle, int row, int byte) {
  const int width = static_cast<int>(swizzle);
  const int offset = row * width + byte;
  return offset ^ ((offset >> 7) % (width / 16) << 4);
}

}  // namespace splash::gpu::arch
