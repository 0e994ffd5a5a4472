#pragma once
// A warpgroup that only loads (sm_90a). It gathers rows of 16-bit elements into tiles of 128 rows, or of 64,
// in the layout that wgmma reads: consecutive panels of 64 columns, 128-byte swizzled. TMA can move a whole
// row but cannot swizzle it, so each thread copies 16-byte chunks with cp.async, which arrive on the tile's
// mbarrier when they land. To wgmma these are ordinary writes, so consumers call fence_async_proxy() after
// their wait.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/cp_async.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/kascade/problem.cuh"

namespace splash::gpu::kascade {

constexpr int kTileRows = 128, kProducers = 128;  // rows of a tile of queries; threads of the warpgroup
constexpr int kPanelBytes = kTileRows * 128;      // 64 columns
constexpr int kConsumerWarps = 8;                 // two warpgroups of 64 rows
constexpr int kThreads = kProducers + 32 * kConsumerWarps;

template <int kDim, int kRows = kTileRows>
constexpr int kTileBytes = kRows* kDim * 2;

// A thread's share of a tile of kRows: one 16-byte column of its rows row(0), row(1), ..., and of head_dim
// 256 one in each half. A warp copies 2 rows (4 of head_dim 64) at a time and at most 32 in all, so each lane
// holds the source of one row.
template <int kDim, int kRows = kTileRows>
struct ProducerShare {
  static constexpr int kHalves = kDim / 128 > 1 ? 2 : 1, kColumns = kDim / kHalves / 8;
  static constexpr int kRowsAtOnce = 32 / kColumns, kSteps = kRows / 4 / kRowsAtOnce;

  int lane, column, first_row;
  uint32_t
      offset;  // of the chunk in row(0): the swizzle depends on row % 8, which is the same for every step
  bool padding[kHalves];  // a column past head_dim

  __device__ explicit ProducerShare(int head_dim) {
    const int warp = threadIdx.x % kProducers / 32;
    lane = threadIdx.x % 32;
    column = lane % kColumns;
    first_row = warp * kRowsAtOnce + lane / kColumns;
    offset = column / 8 * (kRows * 128) + first_row * 128 + ((column % 8) ^ (first_row % 8)) * 16;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) padding[half] = half * 128 + column * 8 >= head_dim;
  }

  static constexpr int kStride = kProducers / 32 * kRowsAtOnce;  // rows from step to step: a multiple of 8

  // The row whose source this lane holds for its warp.
  __device__ int held_row() const {
    return lane / kRowsAtOnce * kStride + threadIdx.x % kProducers / 32 * kRowsAtOnce + lane % kRowsAtOnce;
  }

  // `base`: the head's first row. `row_bytes`: bytes per row. `source`: the row that this lane holds.
  __device__ void copy(unsigned char* tile, const void* base, uint32_t row_bytes, uint32_t source) const {
    const char* from = static_cast<const char*>(base) + (padding[0] ? 0 : column * 16);
    asm("" : "+l"(from));  // one sum; otherwise the compiler adds its parts again for every row
    constexpr int kBatch =
        4;  // addresses under way: one at a time, each copy waits for the registers of the last
#pragma unroll
    for (int first = 0; first < kSteps; first += kBatch) {
      const char* rows[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int holder = (first + i) * kRowsAtOnce + lane / kColumns;
        rows[i] = from + uint64_t{__shfl_sync(0xffffffff, source, holder)} * row_bytes;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          arch::cp_async_16(tile + offset + half * kRows * 256 + (first + i) * kStride * 128,
                            rows[i] + (half > 0 && !padding[half] ? 256 : 0), !padding[half]);
        }
      }
    }
  }
};

}  // namespace splash::gpu::kascade
