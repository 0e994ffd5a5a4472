#include "gpu/entmax/schedule/gather.h"

#include "gpu/entmax/schedule/launch.cuh"
#include "gpu/entmax/schedule/scan.cuh"

namespace splash::gpu::entmax {
namespace {

constexpr int kGatherThreads = 1024;

// Writes the rows of a warp's 32 masks, one per lane, to queries. mask: the lane's; at: the index of its
// first row in queries; word: the index of lane 0's mask among the head's.
__device__ void list_rows(uint32_t mask, int at, int word, int* queries, int64_t first_row,
                          const Support& unstored) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int from = 0; from < 32; ++from) {
    const uint32_t shared_mask = __shfl_sync(0xFFFFFFFFu, mask, from);
    const int place = __shfl_sync(0xFFFFFFFFu, at, from) + __popc(shared_mask & ((1u << lane) - 1));
    if ((shared_mask >> lane & 1) == 0) continue;
    const int query = 32 * (word + from) + lane;
    queries[place] = query;
    if (unstored.offsets == nullptr) continue;
    unstored.offsets[first_row + query] = -1;
    unstored.counts[first_row + query] = 0;
  }
}

// One block per head; each thread takes 32 rows at a time.
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(const uint32_t* masks, int q_len, int* queries, int* counts, Support unstored) {
  wait_for_kernels_before();
  const int head = static_cast<int>(blockIdx.x), words = row_mask_words(q_len);
  masks += int64_t{head} * words;
  queries += int64_t{head} * q_len;
  int before = 0;
  for (int first = 0; first < words; first += kGatherThreads) {
    const int word = first + static_cast<int>(threadIdx.x);
    uint32_t mask = word < words ? masks[word] : 0;
    if (word == words - 1 && q_len % 32 != 0) mask &= (1u << q_len % 32) - 1;
    int all = 0;
    const int at = exclusive_sum<kGatherThreads>(__popc(mask), all);
    if (__any_sync(0xFFFFFFFFu, mask != 0))
      list_rows(mask, before + at, word / 32 * 32, queries, int64_t{head} * q_len, unstored);
    before += all;
  }
  if (threadIdx.x == 0) counts[head] = before;
}

}  // namespace

void gather_rows(const ForwardProblem& problem, const uint32_t* masks, int* queries, int* counts,
                 StreamHandle stream, const Support& unstored) {
  launch("gather_kernel", gather_kernel, static_cast<unsigned>(problem.heads), kGatherThreads, stream, masks,
         problem.q_len, queries, counts, unstored);
}

}  // namespace splash::gpu::entmax
