#include "gpu/entmax/support/csr.h"

#include <algorithm>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_segmented_sort.cuh>
#include <string>

#include "core/error.h"
#include "core/round.h"
#include "gpu/arch/reduce.cuh"
#include "gpu/cuda_check.h"
#include "gpu/entmax/entmax.h"

namespace splash::gpu::entmax {
namespace {

constexpr int kThreads = 256, kWarp = 32;

// offsets[row + 1] = the row's number of entries; a prefix sum follows.
__global__ void __launch_bounds__(kThreads) count_rows(Support support, int64_t rows, int64_t* offsets) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row == 0) offsets[0] = 0;
  if (row < rows) offsets[row + 1] = support.offsets[row] < 0 ? 0 : support.counts[row];
}

// One warp per row. Copies the row's entries to their place, still in the order in which they were stored,
// and turns each excess into its probability.
__global__ void __launch_bounds__(kThreads)
    place_rows(Support support, const float* alpha, int alphas, int q_heads, int q_len, int64_t rows,
               const int64_t* offsets, int32_t* columns, float* probabilities) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t from = support.offsets[row], to = offsets[row], count = offsets[row + 1] - to;
  const Entmax entmax(alpha[alphas == 1 ? 0 : row / q_len % q_heads], 1.0f);
  float sum = 0;
  for (int64_t i = lane; i < count; i += kWarp) sum += entmax.weight(support.excess[from + i]);
  sum = arch::warp_sum(sum);
  for (int64_t i = lane; i < count; i += kWarp) {
    columns[to + i] = support.columns[from + i];
    probabilities[to + i] = entmax.weight(support.excess[from + i]) / sum;
  }
}

// The workspace's layout, in bytes: the unsorted keys at 0, their probabilities, and CUB's scratch.
struct CsrWorkspace {
  CsrWorkspace(int64_t rows, int64_t entries) {
    probabilities = round_up(4 * entries, 256);
    scratch = probabilities + round_up(4 * entries, 256);
    check_cuda(cub::DeviceScan::InclusiveSum(nullptr, scan_bytes, static_cast<int64_t*>(nullptr),
                                             static_cast<int64_t*>(nullptr), rows),
               "size a scan");
    check_cuda(sort(nullptr, sort_bytes, nullptr, {}, entries, rows, nullptr), "size a sort");
    bytes = scratch + static_cast<int64_t>(std::max(scan_bytes, sort_bytes));
  }
  cudaError_t sort(void* temporary, size_t& temporary_bytes, char* base, const CsrMatrix& matrix,
                   int64_t entries, int64_t rows, cudaStream_t stream) const {
    return cub::DeviceSegmentedSort::SortPairs(
        temporary, temporary_bytes, reinterpret_cast<const int32_t*>(base), matrix.columns,
        reinterpret_cast<const float*>(base + probabilities), matrix.probabilities, entries, rows,
        matrix.row_offsets, matrix.row_offsets + 1, stream);
  }
  int64_t probabilities, scratch, bytes;
  size_t scan_bytes = 0, sort_bytes = 0;
};

void require_entries(int64_t entries) {
  if (entries < 0)
    throw InvalidArgument("entries is " + std::to_string(entries) + "; a sparse matrix has 0 or more");
}

}  // namespace

int64_t csr_workspace_bytes(const AttentionSpec& spec, int64_t entries) {
  require_entries(entries);
  return CsrWorkspace(spec.shape.rows(), entries).bytes;
}

void enqueue_csr(const AttentionSpec& spec, const float* alpha, const Support& support, int64_t entries,
                 const CsrMatrix& matrix, void* workspace, StreamHandle stream) {
  require_entries(entries);
  const int64_t rows = spec.shape.rows();
  CsrWorkspace places(rows, entries);
  char* const base = static_cast<char*>(workspace);
  count_rows<<<static_cast<unsigned>(ceil_div(rows, kThreads)), kThreads, 0, stream>>>(support, rows,
                                                                                       matrix.row_offsets);
  check_launch("count_rows");
  check_cuda(cub::DeviceScan::InclusiveSum(base + places.scratch, places.scan_bytes, matrix.row_offsets + 1,
                                           matrix.row_offsets + 1, rows, stream),
             "sum up the rows' entries");
  place_rows<<<static_cast<unsigned>(ceil_div(rows * kWarp, kThreads)), kThreads, 0, stream>>>(
      support, alpha, static_cast<int>(spec.normalizer.alpha.size()), static_cast<int>(spec.shape.q_heads),
      static_cast<int>(spec.shape.q_len), rows, matrix.row_offsets, reinterpret_cast<int32_t*>(base),
      reinterpret_cast<float*>(base + places.probabilities));
  check_launch("place_rows");
  check_cuda(places.sort(base + places.scratch, places.sort_bytes, base, matrix, entries, rows, stream),
             "sort the rows' entries");
}

}  // namespace splash::gpu::entmax
