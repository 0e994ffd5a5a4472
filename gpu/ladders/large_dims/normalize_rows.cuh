#pragma once
// The softmax between the two products of rung 6. sm_90.

#include "gpu/arch/mma.cuh"
#include "gpu/ladders/large_dims/launch.cuh"

namespace splash::gpu::large_dims {

// One warp per row of S [heads, q_len, pitch]. It writes P over the beginning of the same row, with zeros for
// keys that the query does not see. In fp32 each group of eight keys is in the order 0 2 4 6 1 3 5 7. Rows of
// up to 512 keys stay in registers meanwhile. Longer rows are read again; no part of P overwrites scores that
// are still to be read.
constexpr int kSoftmaxThreads = 128;
template <class T>
__global__ void __launch_bounds__(kSoftmaxThreads, 12)
    normalize_rows(const Problem problem, const int pitch, float* scores) {
  constexpr int kVectors = 4, kChunk = 128 * kVectors;  // keys that a warp holds at a time
  let_next_kernel_come();
  follow_previous_kernel();
  const int64_t row = (int64_t{blockIdx.x} * kSoftmaxThreads + threadIdx.x) / 32;
  if (row >= int64_t{problem.heads} * problem.q_len) return;
  const int lane = threadIdx.x % 32, seen = problem.visible_keys(static_cast<int>(row % problem.q_len));
  const float scale_log2e = problem.scale * 1.4426950408889634f;
  scores += row * pitch;
  T* const probabilities = reinterpret_cast<T*>(scores);

  float x[kVectors][4];  // scores in units of log 2, then their powers
  const auto load = [&](int chunk) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int key = chunk + 128 * i + 4 * lane;
      const float4 four = key < seen ? *reinterpret_cast<const float4*>(scores + key) : float4{};
      x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] = key + j < seen ? x[i][j] * scale_log2e : -INFINITY;
    }
  };
  const auto raise = [&](float max) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] = arch::exp2_approx(x[i][j] - (max == -INFINITY ? 0.0f : max));
    }
  };
  float max = -INFINITY, sum = 0;  // of the row so far; sum: this lane's share
  for (int chunk = 0; chunk < seen; chunk += kChunk) {
    load(chunk);
    float new_max = max;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      new_max = fmaxf(new_max, fmaxf(fmaxf(x[i][0], x[i][1]), fmaxf(x[i][2], x[i][3])));
    new_max = warp_max(new_max);
    raise(new_max);
    sum *= arch::exp2_approx(max - (new_max == -INFINITY ? 0.0f : new_max));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) sum += (x[i][0] + x[i][1]) + (x[i][2] + x[i][3]);
    max = new_max;
  }
  const float factor = normalization(warp_sum(sum));
  for (int chunk = 0; chunk < pitch; chunk += kChunk) {
    if (seen == 0 || seen > kChunk || chunk > 0) {  // otherwise the powers are still in x
      load(chunk);
      raise(max);
    }
    __syncwarp();  // all have read before any writes
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int key = chunk + 128 * i + 4 * lane;
      if (key >= pitch) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] *= factor;
      if constexpr (sizeof(T) == 2) {
        *reinterpret_cast<uint2*>(probabilities + key) =
            make_uint2(arch::pack_pair<T>(x[i][0], x[i][1]), arch::pack_pair<T>(x[i][2], x[i][3]));
      } else {  // two lanes hold each group of eight keys, four keys each
        float2* eight = reinterpret_cast<float2*>(probabilities + key / 8 * 8) + lane % 2;
        eight[0] = make_float2(x[i][0], x[i][2]);
        eight[2] = make_float2(x[i][1], x[i][3]);
      }
    }
  }
}

}  // namespace splash::gpu::large_dims
