#pragma once
// Descriptions of tensors for TMA, made on the host and passed by value as a kernel parameter
// (`const __grid_constant__ CUtensorMap map`). Needs the CUDA headers, but not nvcc, and does not link
// libcuda.
//
//   const CUtensorMap keys =
//       encode_tiles({.data = k, .dtype = Dtype::bf16, .heads = batch * kv_heads, .length = kv_len,
//                     .dim = head_dim, .tile_rows = 128, .tile_columns = 64});
//   // on the device: tensor_load(tile, &keys, &barrier, column, row, head);

#include <cuda.h>

#include "core/dtype.h"
#include "gpu/arch/swizzle.h"

namespace splash::gpu::arch {

// Tiles of a contiguous tensor [heads, length, dim]. The map has three dimensions so that rows past a head's
// end load as zeros and not as the next head's rows. Columns past `dim` load as zeros too. Stores skip both.
struct TensorTiles {
  const void* data = nullptr;  // 16-byte aligned
  Dtype dtype = Dtype::bf16;
  int64_t heads = 1;  // batch * heads
  int64_t length = 0;
  int64_t dim = 0;       // dim * element size: a multiple of 16 bytes
  int tile_rows = 0;     // at most 256
  int tile_columns = 0;  // columns * element size: a multiple of 16 bytes, at most the swizzle's width
  Swizzle swizzle = Swizzle::bytes128;
  bool round_to_tf32 = false;  // float32 arrives rounded to nearest tf32
};

// Throws InvalidArgument if a limit above is broken; DeviceError if the driver lacks cuTensorMapEncodeTiled
// (CUDA 12.0) or rejects the map.
CUtensorMap encode_tiles(const TensorTiles& tiles);

}  // namespace splash::gpu::arch
