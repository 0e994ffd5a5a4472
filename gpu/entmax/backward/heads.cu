// What each head has of its rows, dL/dalpha or dL/dsink: a block sums it over the head's rows, in one fixed
// order.

#include "gpu/entmax/backward/row_tile.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kHeadThreads = 1024;

__global__ void __launch_bounds__(kHeadThreads)
    sum_rows(const __grid_constant__ BackwardProblem p, const float* of_rows, float* of_heads) {
  wait_for_kernels_before();
  __shared__ double warp_sums[kHeadThreads / 32];
  double sum = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const float* const rows = of_rows + (b * p.q_heads + blockIdx.x) * p.q_len;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < p.q_len; i += kHeadThreads) sum += static_cast<double>(rows[i]);
  }
  for (int step = 16; step >= 1; step /= 2) sum += __shfl_xor_sync(kWarp, sum, step);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kHeadThreads / 32; ++i) sum += warp_sums[i];
  of_heads[blockIdx.x] = static_cast<float>(sum);
}

}  // namespace

void sum_heads(const BackwardProblem& p, const float* of_rows, float* of_heads, StreamHandle stream) {
  launch("sum_rows", sum_rows, p.q_heads, kHeadThreads, stream, p, of_rows, of_heads);
}

}  // namespace splash::gpu::entmax::backward
