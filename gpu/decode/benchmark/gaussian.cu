#include "gpu/decode/benchmark/gaussian.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "core/error.h"
#include "core/random.h"
#include "gpu/cuda_check.h"

namespace splash::gpu::decode {
namespace {

// Box and Muller in float32: the CPU's double would take most of a run for a cache of gigabytes.
template <class T>
__global__ void gaussian_kernel(T* to, int64_t count, float deviation, uint64_t seed) {
  const CounterRandom random(seed);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float u = static_cast<float>(random.uniform(2 * i)),
                v = static_cast<float>(random.uniform(2 * i + 1));
    to[i] = static_cast<T>(deviation * sqrtf(-2 * logf(u)) * cospif(2 * v));
  }
}

template <class T>
void fill(void* to, int64_t count, double deviation, uint64_t seed, StreamHandle stream) {
  gaussian_kernel<<<4096, 256, 0, stream>>>(static_cast<T*>(to), count, static_cast<float>(deviation), seed);
  check_launch("the Gaussian numbers");
}

}  // namespace

void fill_gaussian_fp8(void* to, int64_t count, double deviation, uint64_t seed, StreamHandle stream) {
  fill<__nv_fp8_e4m3>(to, count, deviation, seed, stream);
}

void fill_gaussian(void* to, Dtype dtype, int64_t count, double deviation, uint64_t seed,
                   StreamHandle stream) {
  if (dtype == Dtype::bf16) return fill<__nv_bfloat16>(to, count, deviation, seed, stream);
  if (dtype == Dtype::f16) return fill<__half>(to, count, deviation, seed, stream);
  throw Unsupported("Gaussian numbers are made in bfloat16 and float16, not in " +
                    std::string(to_string(dtype)));
}

}  // namespace splash::gpu::decode
