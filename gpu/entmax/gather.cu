#include "gpu/entmax/gather.h"

#include <cub/block/block_scan.cuh>

#include "gpu/cuda_check.h"

namespace splash::gpu::entmax {
namespace {

constexpr int kThreads = 1024;

// Rows of a warp's masks, the lane's from `first` on: a mask's rows lie in consecutive lanes.
__device__ void mark(uint32_t mask, int64_t first, const Support& unstored) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int from = 0; from < 32; ++from) {
    const int64_t row = __shfl_sync(0xFFFFFFFFu, first, from) + lane;
    if ((__shfl_sync(0xFFFFFFFFu, mask, from) >> lane & 1) == 0) continue;
    unstored.offsets[row] = -1;
    unstored.counts[row] = 0;
  }
}

// One block a head, a thread 32 rows at a time.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const uint32_t* masks, int q_len, int* queries, int* counts, Support unstored) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ Scan::TempStorage scratch;
  const int head = static_cast<int>(blockIdx.x), words = row_mask_words(q_len);
  masks += int64_t{head} * words;
  queries += int64_t{head} * q_len;
  int before = 0;
  for (int first = 0; first < words; first += kThreads) {
    const int word = first + static_cast<int>(threadIdx.x);
    uint32_t mask = word < words ? masks[word] : 0;
    if (word == words - 1 && q_len % 32 != 0) mask &= (1u << q_len % 32) - 1;
    int at = 0, all = 0;
    Scan(scratch).ExclusiveSum(__popc(mask), at, all);
    if (unstored.offsets != nullptr) mark(mask, int64_t{head} * q_len + 32 * word, unstored);
    for (at += before; mask != 0; mask &= mask - 1)
      queries[at++] = 32 * word + __ffs(static_cast<int>(mask)) - 1;
    before += all;
    __syncthreads();  // the scan's scratch is free again
  }
  if (threadIdx.x == 0) counts[head] = before;
}

}  // namespace

void gather_rows(const Problem& problem, const uint32_t* masks, int* queries, int* counts,
                 StreamHandle stream, const Support& unstored) {
  gather_kernel<<<static_cast<unsigned>(problem.heads), kThreads, 0, stream>>>(masks, problem.q_len, queries,
                                                                               counts, unstored);
  check_launch("gather_kernel");
}

}  // namespace splash::gpu::entmax
