// dL/dalpha of each head: a block sums those of the head's rows, in one fixed order.

#include "gpu/entmax/backward/row_tile.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kAlphaThreads = 1024;

__global__ void __launch_bounds__(kAlphaThreads) sum_head_alphas(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  __shared__ double warp_sums[kAlphaThreads / 32];
  double sum = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const float* const rows = p.row_alphas + (b * p.q_heads + blockIdx.x) * p.q_len;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < p.q_len; i += kAlphaThreads) sum += static_cast<double>(rows[i]);
  }
  for (int step = 16; step >= 1; step /= 2) sum += __shfl_xor_sync(kWarp, sum, step);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kAlphaThreads / 32; ++i) sum += warp_sums[i];
  p.d_alpha[blockIdx.x] = static_cast<float>(sum);
}

}  // namespace

void sum_alpha(const BackwardProblem& p, StreamHandle stream) {
  launch("sum_head_alphas", sum_head_alphas, p.q_heads, kAlphaThreads, stream, p);
}

}  // namespace splash::gpu::entmax::backward
