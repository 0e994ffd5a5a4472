#include "gpu/entmax/support/store.h"

#include <algorithm>

#include "core/error.h"
#include "core/round.h"
#include "gpu/cuda_check.h"

namespace splash::gpu::entmax {
namespace {

constexpr int kStoreThreads = 256;

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(items, kStoreThreads), 1, 1024));
}

__device__ int64_t first_item() {
  return int64_t{blockIdx.x} * kStoreThreads + threadIdx.x;
}
__device__ int64_t all_threads() {
  return int64_t{gridDim.x} * kStoreThreads;
}

__global__ void __launch_bounds__(kStoreThreads) begin_kernel(const Store store, const StoreHeader header) {
  if (first_item() == 0) *store.header = header;
  for (int64_t i = first_item(); i < store.heads; i += all_threads()) store.unstored_counts[i] = 0;
}

__global__ void __launch_bounds__(kStoreThreads) admit_kernel(const Store store, uint64_t key) {
  if (store.header->problem == key && store.header->capacity == store.support.capacity) return;
  if (first_item() == 0) store.header->used = ~0ull;
  for (int64_t i = first_item(); i < store.rows; i += all_threads()) {
    store.support.offsets[i] = -1;
    store.support.counts[i] = 0;
  }
  for (int64_t i = first_item(); i < store.heads; i += all_threads()) store.unstored_counts[i] = 0;
}

struct Words {
  uint32_t* data;
  int64_t count;
};

// blockIdx.y: which result.
__global__ void __launch_bounds__(kStoreThreads)
    refuse_results_kernel(const Store store, const __grid_constant__ std::array<Words, 4> results) {
  if (store.header->used <= static_cast<unsigned long long>(store.support.capacity)) return;
  const Words result = results[blockIdx.y];
  for (int64_t i = first_item(); i < result.count; i += all_threads()) result.data[i] = 0xFFFFFFFF;
}

}  // namespace

void begin_store(const Store& store, uint64_t key, StreamHandle stream) {
  begin_kernel<<<blocks_for(store.heads), kStoreThreads, 0, stream>>>(store, empty_header(store, key));
  check_launch("begin_kernel");
}

StoreHeader read_store(const Store& store, uint64_t key, StreamHandle stream) {
  StoreHeader header;
  check_cuda(cudaMemcpyAsync(&header, store.header, sizeof(header), cudaMemcpyDeviceToHost, stream),
             "read the store's header");
  check_cuda(cudaStreamSynchronize(stream), "wait for the store's header");
  if (header.problem != key || header.capacity != store.support.capacity) {
    throw InvalidArgument(
        "the store is not what forward left for these inputs; backward takes the store of a forward with the "
        "same "
        "shapes, dtype, mask, scale and k_keep, unchanged");
  }
  return header;
}

void admit_store(const Store& store, uint64_t key, StreamHandle stream) {
  admit_kernel<<<blocks_for(store.rows), kStoreThreads, 0, stream>>>(store, key);
  check_launch("admit_kernel");
}

void refuse_store(const Store& store, int64_t batch, const std::array<HeadResult, 4>& results,
                  StreamHandle stream) {
  std::array<Words, 4> all{};
  unsigned wanted = 0;
  int64_t most = 0;
  for (const HeadResult& result : results) {
    if (result.data == nullptr) continue;
    const Words words{static_cast<uint32_t*>(result.data), batch * result.heads * result.head_bytes / 4};
    most = std::max(most, words.count);
    all[wanted++] = words;
  }
  if (wanted == 0) return;
  refuse_results_kernel<<<dim3(blocks_for(most), wanted), kStoreThreads, 0, stream>>>(store, all);
  check_launch("refuse_results_kernel");
}

}  // namespace splash::gpu::entmax
