#include "gpu/entmax/arguments/alphas.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "gpu/cuda_check.h"
#include "gpu/entmax/entmax.h"

namespace splash::gpu::entmax {
namespace {

constexpr int kAlphaThreads = 256;

__global__ void __launch_bounds__(kAlphaThreads) take_kernel(const float* alpha, int count, float* result) {
  const int i = static_cast<int>(blockIdx.x) * kAlphaThreads + static_cast<int>(threadIdx.x);
  if (i < count) result[i] = attention_takes(alpha[i]) ? alpha[i] : 1.5f;
}

struct Refusal {
  const float* alpha;
  int count, q_heads;
  int64_t batch;
  std::array<HeadResult, 4> results;
};

// blockIdx.x: a head of a batch entry, grid-stride. blockIdx.y: which result.
__global__ void __launch_bounds__(kAlphaThreads) refuse_kernel(const __grid_constant__ Refusal refusal) {
  const HeadResult result = refusal.results[blockIdx.y];
  const int64_t words = result.head_bytes / 4;
  for (int64_t head = blockIdx.x; head < refusal.batch * result.heads; head += gridDim.x) {
    const int group = refusal.q_heads / static_cast<int>(result.heads),
              first = static_cast<int>(head % result.heads) * group;
    bool refused = false;
    for (int i = 0; i < group; ++i)
      refused |= !attention_takes(refusal.alpha[refusal.count == 1 ? 0 : first + i]);
    if (!refused) continue;
    auto* const data = static_cast<uint32_t*>(result.data) + head * words;
    for (int64_t i = threadIdx.x; i < words; i += kAlphaThreads) data[i] = 0xFFFFFFFF;
  }
}

}  // namespace

void take_alphas(const float* alpha, int count, float* taken, StreamHandle stream) {
  take_kernel<<<(count + kAlphaThreads - 1) / kAlphaThreads, kAlphaThreads, 0, stream>>>(alpha, count, taken);
  check_launch("take_kernel");
}

void refuse_heads(const float* alpha, int count, int64_t batch, int64_t q_heads,
                  const std::array<HeadResult, 4>& results, StreamHandle stream) {
  Refusal refusal{
      .alpha = alpha, .count = count, .q_heads = static_cast<int>(q_heads), .batch = batch, .results = {}};
  unsigned wanted = 0;
  for (const HeadResult& result : results) {
    if (result.data == nullptr) continue;
    if (result.heads < 1 || q_heads % result.heads != 0) {
      throw InvalidArgument("a result has " + std::to_string(result.heads) +
                            " heads; allowed: divisors of the " + std::to_string(q_heads) + " query heads");
    }
    if (result.head_bytes % 4 != 0) {
      throw InvalidArgument("a result has " + std::to_string(result.head_bytes) +
                            " bytes a head; allowed: multiples of 4");
    }
    refusal.results[wanted++] = result;
  }
  if (wanted == 0) return;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(batch * q_heads, 1 << 16)), wanted);
  refuse_kernel<<<grid, kAlphaThreads, 0, stream>>>(refusal);
  check_launch("refuse_kernel");
}

}  // namespace splash::gpu::entmax
