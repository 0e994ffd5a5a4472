#include "gpu/arch/tensor_map.h"

#include "gpu/cuda_check.h"

namespace splash::gpu::arch {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Looked up in the driver at run time, because a program that links libcuda does not start without a driver.
Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
      "look for cuTensorMapEncodeTiled in the driver");
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
    throw DeviceError("the NVIDIA driver has no cuTensorMapEncodeTiled: it must serve CUDA 12.0 or newer");
  }
  return reinterpret_cast<Encode>(entry);
}

CUtensorMapDataType data_type(const TensorTiles& tiles) {
  switch (tiles.dtype) {
    case Dtype::f32:
      return tiles.round_to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Dtype::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case Dtype::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Dtype::f64:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
  }
  throw InvalidArgument("tensor map: unknown dtype");
}

CUtensorMapSwizzle swizzle_of(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::bytes32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case Swizzle::bytes64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::bytes128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  throw InvalidArgument("tensor map: unknown swizzle");
}

void require(bool holds, const char* what) {
  if (!holds) throw InvalidArgument(std::string("tensor map: ") + what);
}

}  // namespace

CUtensorMap encode_tiles(const TensorTiles& tiles) {
  const int64_t bytes = bytes_of(tiles.dtype);
  const int64_t tile_bytes = tiles.tile_columns * bytes;
  require(reinterpret_cast<uintptr_t>(tiles.data) % 16 == 0, "the data must be 16-byte aligned");
  require(tiles.heads > 0 && tiles.length > 0 && tiles.dim > 0, "heads, length and dim must be positive");
  require(tiles.dim * bytes % 16 == 0, "a row must be a multiple of 16 bytes");
  require(tiles.tile_rows > 0 && tiles.tile_rows <= 256, "a tile has 1 to 256 rows");
  require(tile_bytes > 0 && tile_bytes % 16 == 0 && tile_bytes <= static_cast<int>(tiles.swizzle),
          "a tile's row must be a multiple of 16 bytes and no longer than the swizzle");
  static const Encode encode = find_encode();
  const auto unsign = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t extents[3] = {unsign(tiles.dim), unsign(tiles.length), unsign(tiles.heads)};
  const cuuint64_t strides[2] = {unsign(tiles.dim * bytes), unsign(tiles.length * tiles.dim * bytes)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(tiles.tile_columns),
                             static_cast<cuuint32_t>(tiles.tile_rows), 1};
  const cuuint32_t element_strides[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, data_type(tiles), 3, const_cast<void*>(tiles.data), extents, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(tiles.swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw DeviceError("could not describe a tensor of " + std::to_string(tiles.heads) + " x " +
                      std::to_string(tiles.length) + " x " + std::to_string(tiles.dim) +
                      " to TMA: driver error " + std::to_string(static_cast<int>(result)));
  }
  return map;
}

}  // namespace splash::gpu::arch
