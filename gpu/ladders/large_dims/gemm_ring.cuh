#pragma once
// What the products of rung 6 share: one product per head, in tiles of 128 rows by 128 or 256 columns. A
// persistent block has one producer and two consumer warpgroups and a ring of stages in shared memory. The
// producer runs ahead across tiles, so that a tile's first loads overlap with the previous tile. The blocks
// of a cluster take neighbouring rows of the same columns. Each loads its share of the columns' operand and
// multicasts it to all blocks of the cluster. sm_90a.

#include <algorithm>

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/multicast.cuh"
#include "gpu/arch/tensor_map.h"
#include "gpu/arch/warpgroup.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/ladders/large_dims/launch.cuh"

namespace splash::gpu::large_dims {

constexpr int kConsumers = 2, kGemmThreads = 128 * (1 + kConsumers);
constexpr int kPanel = 128;  // bytes per row of a stage: the swizzle's width, 64 bf16 or 32 floats
constexpr int kStages = 4;

// The block's own operand of 128 rows and the operand of up to 256 columns: 48 KB.
constexpr int kTileRows = 128, kMaxColumns = 256;
struct Stage {
  unsigned char rows[kTileRows * kPanel];
  unsigned char columns[kMaxColumns * kPanel];
};

struct Ring {
  Stage stages[kStages];  // 1024-byte aligned: first
  uint64_t full[kStages], empty[kStages];
};

struct Product {
  int heads, rows, columns;
};

struct ProductTile {
  int head, first_row, first_column;
  int last_row;  // of the cluster's tiles
};

template <int kColumns, class Use>
__device__ void for_each_tile(const Product& product, Use&& use) {
  const int ranks = arch::cluster_size(), rows = kTileRows * ranks;  // of a cluster
  const int row_tiles = (product.rows + rows - 1) / rows;
  const int column_tiles = (product.columns + kColumns - 1) / kColumns;
  for (int tile = static_cast<int>(blockIdx.x) / ranks; tile < product.heads * row_tiles * column_tiles;
       tile += static_cast<int>(gridDim.x) / ranks) {
    const int first_row = tile / column_tiles % row_tiles * rows;
    use(ProductTile{tile / column_tiles / row_tiles, first_row + kTileRows * arch::cluster_rank(),
                    tile % column_tiles * kColumns, first_row + rows - 1});
  }
}

// All threads call it. steps(tile) must be the same in all blocks of a cluster; 0 skips the tile. One thread
// calls load(tile, stage, full, step). The consumers call multiply(tile, consumer, ring, at, steps), which
// releases every stage.
template <int kColumns, class Steps, class Load, class Multiply>
__device__ void run(Ring& ring, const Product& product, Steps&& steps, Load&& load, Multiply&& multiply) {
  using namespace arch;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&ring.full[i], 1);
      mbarrier_init(&ring.empty[i], 4 * kConsumers * cluster_size());  // one per consumer warp
    }
    mbarrier_init_fence();
  }
  cluster_arrive();
  cluster_wait();  // all see the barriers
  let_next_kernel_come();
  follow_previous_kernel();
  const int consumer = static_cast<int>(threadIdx.x / 128) - 1;
  arch::RingPosition<kStages> at;
  if (consumer < 0) {
    give_registers_back<40>();
    if (threadIdx.x != 0) return;
    for_each_tile<kColumns>(product, [&](const ProductTile& tile) {
      for (int step = 0, end = steps(tile); step < end; ++step, at.next()) {
        mbarrier_wait(&ring.empty[at.stage], at.parity ^ 1);
        mbarrier_arrive_expect(&ring.full[at.stage], (kTileRows + kColumns) * kPanel);
        load(tile, ring.stages[at.stage], &ring.full[at.stage], step);
      }
    });
    for (int i = 0; i < kStages; ++i, at.next())  // stay until the other blocks have arrived here
      mbarrier_wait(&ring.empty[at.stage], at.parity ^ 1);
  } else {
    take_registers<232>();
    for_each_tile<kColumns>(product, [&](const ProductTile& tile) {
      if (const int end = steps(tile); end > 0) multiply(tile, consumer, ring, at, end);
    });
  }
}

// load() calls it. Calls use(part, ranks) for those of the four parts of the columns' operand that this block
// loads; `ranks` is the mask of blocks that tensor_load_multicast sends the part to.
template <class Use>
__device__ void for_own_parts(Use&& use) {
  const int ranks = arch::cluster_size();
  for (int part = arch::cluster_rank(); part < 4; part += ranks) use(part, (1 << ranks) - 1);
}

__device__ inline void release(Ring& ring, int stage) {
  const int lane = threadIdx.x % 32;
  if (lane < arch::cluster_size()) arch::mbarrier_arrive_at(&ring.empty[stage], lane);
}

// A consumer calls it. issue(stage, step) issues the products of one stage. One step's products are still in
// flight when the next step's are issued. A stage is released once its own products are done.
template <int kRegisters, class Issue>
__device__ void consume(Ring& ring, arch::RingPosition<kStages>& at, int steps, float (&sums)[kRegisters],
                        Issue&& issue) {
  int previous = 0;
  for (int step = 0; step < steps; ++step, at.next()) {
    arch::mbarrier_wait(&ring.full[at.stage], at.parity);
    arch::wgmma_fence();
    issue(ring.stages[at.stage], step);
    arch::wgmma_commit();
    arch::wgmma_wait<1>();
    if (step > 0) release(ring, previous);
    previous = at.stage;
  }
  arch::wgmma_wait<0>();
  release(ring, previous);
  arch::wgmma_hold(sums);
}

// Host side. Blocks work in pairs if the number of row tiles is even. Clusters of four would be worse: an
// H200 groups its multiprocessors such that it holds at most 30 of them at once, and two waves would become
// three.
inline Grid grid_of(int64_t rows) {
  return {.ranks = ceil_div(rows, kTileRows) % 2 == 0 ? 2 : 1};
}
inline int64_t blocks_of(int64_t heads, int64_t rows, int64_t column_tiles, int64_t multiprocessors) {
  const int64_t ranks = grid_of(rows).ranks;
  return std::min(heads * ceil_div(rows, kTileRows) * column_tiles, multiprocessors / ranks * ranks);
}

}  // namespace splash::gpu::large_dims
