#include "gpu/entmax/schedule/gather.h"

#include "gpu/entmax/schedule/launch.cuh"
#include "gpu/entmax/schedule/scan.cuh"
#include "gpu/entmax/support/unstored.h"

namespace splash::gpu::entmax {
namespace {

constexpr int kGatherThreads = 1024;

// Writes the rows of a warp's 32 masks, one per lane, to queries. mask: the lane's; at: the index of its
// first row in queries; word: the index of lane 0's mask among the head's; offsets: null, or where the rows
// are marked as unstored.
__device__ void list_rows(uint32_t mask, int at, int word, int* queries, int64_t first_row, int64_t* offsets,
                          int32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int from = 0; from < 32; ++from) {
    const uint32_t shared_mask = __shfl_sync(0xFFFFFFFFu, mask, from);
    const int place = __shfl_sync(0xFFFFFFFFu, at, from) + __popc(shared_mask & ((1u << lane) - 1));
    if ((shared_mask >> lane & 1) == 0) continue;
    const int query = 32 * (word + from) + lane;
    queries[place] = query;
    if (offsets == nullptr) continue;
    offsets[first_row + query] = -1;
    counts[first_row + query] = 0;
  }
}

// To memory of the host, which polls it: one store, so that it sees both parts or none.
__device__ void tell(const Support& support, const NoticeWord& notice) {
  if (notice.address == nullptr) return;
  *static_cast<volatile unsigned long long*>(notice.address) =
      notice.ticket << NoticeWord::kUsedBits | min(*support.used, NoticeWord::most());
}

__global__ void tell_kernel(const Support support, const NoticeWord notice) {
  wait_for_kernels_before();
  tell(support, notice);
}

// One block per head and list: first those of deferred rows, then those of unstored ones. Each thread takes
// 32 rows at a time.
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(int heads, int q_len, uint32_t* next_share, const ListedMasks deferred,
                  const ListedMasks unstored, const Support support, const NoticeWord notice) {
  wait_for_kernels_before();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (next_share != nullptr) *next_share = 0;
    tell(support, notice);
  }
  const int block = static_cast<int>(blockIdx.x), words = row_mask_words(q_len);
  const bool of_deferred = block < heads;
  const int head = of_deferred ? block : block - heads;
  const int64_t first_word = int64_t{head} * words, first_row = int64_t{head} * q_len;
  const auto mask_of = [&](const uint32_t* masks, int word) {
    const uint32_t mask = word < words ? masks[first_word + word] : 0;
    return word == words - 1 && q_len % 32 != 0 ? mask & ((1u << q_len % 32) - 1) : mask;
  };
  const uint32_t* masks = deferred.masks;
  if (!of_deferred) {
    int rows = 0, all = 0;
    for (int word = static_cast<int>(threadIdx.x); word < words; word += kGatherThreads)
      rows += __popc(mask_of(unstored.masks, word));
    exclusive_sum<kGatherThreads>(rows, all);
    if (leaves_unstored(all, q_len)) masks = unstored.masks;
  }
  int* const queries = (of_deferred ? deferred.queries : unstored.queries) + first_row;
  int before = 0;
  for (int first = 0; first < words; first += kGatherThreads) {
    const int word = first + static_cast<int>(threadIdx.x);
    const uint32_t mask = mask_of(masks, word);
    int all = 0;
    const int at = exclusive_sum<kGatherThreads>(__popc(mask), all);
    if (__any_sync(0xFFFFFFFFu, mask != 0))
      list_rows(mask, before + at, word / 32 * 32, queries, first_row,
                of_deferred ? nullptr : support.offsets, support.counts);
    before += all;
  }
  if (threadIdx.x == 0) (of_deferred ? deferred.counts : unstored.counts)[head] = before;
}

}  // namespace

void gather_rows(const ForwardProblem& problem, const ListedMasks& deferred, StreamHandle stream,
                 const ListedMasks& unstored, const Support& support, const NoticeWord& notice) {
  const int lists = unstored.masks != nullptr ? 2 : 1;
  launch("gather_kernel", gather_kernel, static_cast<unsigned>(lists * problem.heads), kGatherThreads, stream,
         problem.heads, problem.q_len, problem.next_share, deferred, unstored, support, notice);
}

void tell_entries(const Support& support, const NoticeWord& notice, StreamHandle stream) {
  if (notice.address == nullptr) return;
  launch("tell_kernel", tell_kernel, 1, 1, stream, support, notice);
}

}  // namespace splash::gpu::entmax
