#pragma once
// A tile of fp32 scores on the FMA units: Q and K rows in shared memory, a block of outputs in each lane's
// registers.

#include "gpu/ladders/splash/rows.cuh"

namespace splash::gpu::sparse {

// The ways to read K and V that rungs 4, 5 and 9 change (5 brings its own), `width` floats per lane at a
// time.
struct PlainLoads {  // ordinary loads, coalesced: a warp reads 128 bytes
  static constexpr int width = 1;
  const float* data;
  __device__ __forceinline__ float operator()(int64_t i) const { return data[i]; }
};
struct ChunkLoads {  // ordinary loads, 16 bytes a lane: 8 lanes read an aligned chunk of 128 bytes
  static constexpr int width = 4;
  const float* data;
  __device__ __forceinline__ float4 operator()(int64_t i) const {
    return *reinterpret_cast<const float4*>(data + i);
  }
};
struct ReadOnlyLoads {  // ld.global.nc, 16 bytes a lane
  static constexpr int width = 4;
  const float* data;
  __device__ __forceinline__ float4 operator()(int64_t i) const {
    return __ldg(reinterpret_cast<const float4*>(data + i));
  }
};

// Floats between rows in shared memory: rows 16 bytes apart in their banks, so 8 lanes read 8 rows at once.
__host__ __device__ constexpr int row_pitch(int head_dim) {
  return head_dim + 4;
}

// Rows [first, first + count) of a matrix; those at or past `end` become zeros.
template <class Loads>
__device__ __forceinline__ void load_rows(const Loads& loads, int64_t first, int count, int64_t end,
                                          int head_dim, float* shared) {
  using Vector = decltype(loads(0));
  constexpr int kLanes = Loads::width == 1 ? 32 : 16;  // lanes per row
  const int lane = static_cast<int>(threadIdx.x) % kLanes, step = static_cast<int>(blockDim.x) / kLanes;
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < count; row += step) {
    for (int i = lane * Loads::width; i < head_dim; i += kLanes * Loads::width) {
      *reinterpret_cast<Vector*>(shared + row * row_pitch(head_dim) + i) =
          first + row < end ? loads((first + row) * head_dim + i) : Vector{};
    }
  }
}

// A warp multiplies 2 kRows queries by 16 kColumns keys. Lane l gets the queries kRows (l / 16) + r and the
// keys l % 16 + 16 c.
template <int kRows, int kColumns>
__device__ __forceinline__ void multiply(const float* q, const float* k, int head_dim,
                                         float (&s)[kRows][kColumns]) {
  const int pitch = row_pitch(head_dim), lane = static_cast<int>(threadIdx.x) % 32;
  q += lane / 16 * kRows * pitch;
  k += lane % 16 * pitch;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) s[r][c] = 0;
  }
  for (int i = 0; i < head_dim; i += 4) {
    float4 x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = *reinterpret_cast<const float4*>(q + r * pitch + i);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float4 y = *reinterpret_cast<const float4*>(k + 16 * c * pitch + i);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        s[r][c] = fmaf(x[r].w, y.w, fmaf(x[r].z, y.z, fmaf(x[r].y, y.y, fmaf(x[r].x, y.x, s[r][c]))));
    }
  }
}

// Stores the lanes' registers to rows of `pitch` floats.
template <int kRows, int kColumns>
__device__ __forceinline__ void store_scores(const float (&s)[kRows][kColumns], float scale, float* shared,
                                             int pitch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      shared[(lane / 16 * kRows + r) * pitch + lane % 16 + 16 * c] = scale * s[r][c];
  }
}

// sum += sum of weight * value row over the lanes' keys; lane l holds the dimensions l width + 32 width i.
template <class Loads>
__device__ __forceinline__ void add_values(const Loads& values, int64_t head_first, int head_dim,
                                           float weight, int key, float (&sum)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (unsigned left = __ballot_sync(kWarp, weight != 0); left != 0; left &= left - 1) {
    const int source = __ffs(static_cast<int>(left)) - 1;
    const float w = __shfl_sync(kWarp, weight, source);
    const int64_t row = (head_first + __shfl_sync(kWarp, key, source)) * head_dim;
    if constexpr (Loads::width == 4) {
      if (4 * lane < head_dim) {
        const float4 value = values(row + 4 * lane);
        sum[0] = fmaf(w, value.x, sum[0]);
        sum[1] = fmaf(w, value.y, sum[1]);
        sum[2] = fmaf(w, value.z, sum[2]);
        sum[3] = fmaf(w, value.w, sum[3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (lane + 32 * i < head_dim) sum[i] = fmaf(w, values(row + lane + 32 * i), sum[i]);
      }
    }
  }
}

// Writes a row of the output, in the layout of add_values.
template <int kWidth>
__device__ __forceinline__ void store_row(float* out, int head_dim, float factor, const float (&sum)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int d = kWidth == 4 ? 4 * lane + i : lane + 32 * i;
    if (d < head_dim) out[d] = factor * sum[i];
  }
}

}  // namespace splash::gpu::sparse
