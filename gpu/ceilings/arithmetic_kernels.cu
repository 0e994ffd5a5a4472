// Plain FMA, exponentials and the tensor cores, fed from registers and shared memory alone. Tensor operands
// are random: a product of zeros draws less power, so its clock would stay higher than in any real product.

#include <cuda_fp8.h>

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/ceilings/clock_span.cuh"
#include "gpu/ceilings/kernels.h"
#include "gpu/cuda_check.h"

namespace splash::gpu {
namespace {

using namespace arch;
using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;

__global__ void empty_kernel() {}

__global__ void __launch_bounds__(kFmaThreads)
    fma_kernel(float factor, float addend, int steps, ClockSpan* span) {
  const SpanClock clock;
  float x[kFmaChains];
  for (int i = 0; i < kFmaChains; ++i) x[i] = 0.37f * static_cast<float>(threadIdx.x + i);
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kFmaUnroll * kFmaChains; ++i)
      x[i % kFmaChains] = fmaf(x[i % kFmaChains], factor, addend);
  }
  float sum = 0;
  for (const float value : x) sum += value;
  if (sum == 1234.5f) span->cycles = 0;  // no thread gets there, but the compiler must compute the sum
  clock.close(span);
}

// Chains of 2^-x converge to 0.641, far from zeros, infinities and denormals, which a unit might treat
// specially. The minus sign is an operand modifier, so each link of a chain is one instruction.
__global__ void __launch_bounds__(kExpThreads) exponentials_kernel(int steps, ClockSpan* span) {
  const SpanClock clock;
  float x[kExpChains];
  for (int i = 0; i < kExpChains; ++i) x[i] = 0.001f * static_cast<float>(threadIdx.x + i);
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kExpUnroll * kExpChains; ++i)
      asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(x[i % kExpChains]) : "f"(-x[i % kExpChains]));
  }
  float sum = 0;
  for (const float value : x) sum += value;
  if (sum == 1234.5f) span->cycles = 0;
  clock.close(span);
}

// Per warp and step: four fragments of A times four of B, 16 independent products.
template <class Element>
__global__ void __launch_bounds__(kMmaThreads)
    mma_kernel(const uint32_t* random, int steps, ClockSpan* span) {
  const SpanClock clock;
  uint32_t a[kMmaTiles][4], b[kMmaTiles][2];
  float d[kMmaTiles][kMmaTiles][4] = {};
  for (int i = 0; i < kMmaTiles; ++i) {
    for (int j = 0; j < 4; ++j) a[i][j] = random[(i * 6 + j) * 32 + threadIdx.x % 32];
    for (int j = 0; j < 2; ++j) b[i][j] = random[(i * 6 + 4 + j) * 32 + threadIdx.x % 32];
  }
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kMmaTiles * kMmaTiles; ++i) {
      const int row = i / kMmaTiles, column = i % kMmaTiles;
      if constexpr (sizeof(Element) == 4) {
        mma_m16n8k8_tf32(d[row][column], a[row], b[column][0], b[column][1]);
      } else {
        mma_m16n8k16<Element>(d[row][column], a[row], b[column][0], b[column][1]);
      }
    }
  }
  float sum = 0;
  for (const auto& row : d)
    for (const auto& tile : row) sum += tile[0] + tile[1] + tile[2] + tile[3];
  if (sum == 1234.5f) span->cycles = 0;
  clock.close(span);
}

// Every step accumulates, because ptxas drops a product whose result the next one overwrites.
template <class Element>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    wgmma_kernel(const uint4* random, int steps, ClockSpan* span) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const SpanClock clock;
  extern __shared__ __align__(1024) uint4 shared[];
  for (int i = threadIdx.x; i < kWgmmaShared / 16; i += kWgmmaThreads) shared[i] = random[i];
  fence_async_proxy();
  __syncthreads();
  const uint64_t b = k_major_descriptor(shared);
  const uint64_t a = k_major_descriptor(shared + (kWgmmaBytesB + threadIdx.x / 128 * kWgmmaBytesA) / 16);
  float d[kWgmmaN / 2];
  for (float& x : d) x = 0;
  for (int step = 0; step < steps; ++step) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma<Element>(d, advance(a, 32 * k), advance(b, 32 * k), true);
    wgmma_commit();
    wgmma_wait<1>();
  }
  wgmma_wait<0>();
  wgmma_hold(d);
  float sum = 0;
  for (const float x : d) sum += x;
  if (sum == 1234.5f) span->cycles = 0;
  clock.close(span);
#endif
}

template <class Element>
void launch_wgmma_of(const void* random, int blocks, int steps, ClockSpan* span, StreamHandle stream) {
  const auto kernel = wgmma_kernel<Element>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWgmmaShared),
             "get shared memory");
  kernel<<<blocks, kWgmmaThreads, kWgmmaShared, stream>>>(static_cast<const uint4*>(random), steps, span);
  check_launch("wgmma_kernel");
}

template <class Element>
void launch_mma_of(const void* random, int blocks, int steps, ClockSpan* span, StreamHandle stream) {
  mma_kernel<Element><<<blocks, kMmaThreads, 0, stream>>>(static_cast<const uint32_t*>(random), steps, span);
  check_launch("mma_kernel");
}

}  // namespace

void launch_empty(StreamHandle stream) {
  empty_kernel<<<1, 32, 0, stream>>>();
  check_launch("empty_kernel");
}

void launch_fma(int blocks, int steps, ClockSpan* span, StreamHandle stream) {
  fma_kernel<<<blocks, kFmaThreads, 0, stream>>>(0.999f, 0.37f, steps, span);
  check_launch("fma_kernel");
}

void launch_exponentials(int blocks, int steps, ClockSpan* span, StreamHandle stream) {
  exponentials_kernel<<<blocks, kExpThreads, 0, stream>>>(steps, span);
  check_launch("exponentials_kernel");
}

void launch_wgmma(MatrixType type, const void* random, int blocks, int steps, ClockSpan* span,
                  StreamHandle stream) {
  switch (type) {
    case MatrixType::tf32:
      return launch_wgmma_of<float>(random, blocks, steps, span, stream);
    case MatrixType::f16:
      return launch_wgmma_of<__half>(random, blocks, steps, span, stream);
    case MatrixType::bf16:
      return launch_wgmma_of<bf16>(random, blocks, steps, span, stream);
    case MatrixType::e4m3:
      return launch_wgmma_of<e4m3>(random, blocks, steps, span, stream);
  }
}

void launch_mma(MatrixType type, const void* random, int blocks, int steps, ClockSpan* span,
                StreamHandle stream) {
  switch (type) {
    case MatrixType::tf32:
      return launch_mma_of<float>(random, blocks, steps, span, stream);
    case MatrixType::f16:
      return launch_mma_of<__half>(random, blocks, steps, span, stream);
    case MatrixType::bf16:
      return launch_mma_of<bf16>(random, blocks, steps, span, stream);
    case MatrixType::e4m3:
      throw Unsupported("mma.sync of fp8 is not built; wgmma on compute capability 9.0 is");
  }
}

}  // namespace splash::gpu
