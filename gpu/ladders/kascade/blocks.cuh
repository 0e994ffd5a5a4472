#pragma once
// The kernel of rung 7: rung 2's loop for blocks of more rows than one warp's 16 x 8. A thread block holds
// one or two slices of 128 rows, which use the same staged tile of keys and values. Where that is not enough,
// a cluster of thread blocks stands for the document's block. Each thread block gathers its share of the tile
// and stores it into the shared memory of all, so that a cluster reads every key once from global memory.

#include "gpu/arch/cluster.cuh"
#include "gpu/ladders/kascade/warp_tile.cuh"

namespace splash::gpu::kascade {

constexpr int kSliceRows = 128, kBlockThreads = 256;  // eight warps of 16 rows

template <int kBlockSlices, int kTileKeys, int kClusterBlocks>
struct NamedBlock {
  static constexpr int kSlices = kBlockSlices, kKeys = kTileKeys, kCluster = kClusterBlocks;
  static constexpr int kRows = kSlices * kSliceRows;  // of a thread block
  static_assert(kKeys % kCluster == 0);
};

template <class Element, class Block>
struct BlockShared {
  alignas(16) Element queries[Block::kRows * kPitch];
  KeyTile<Element, Block::kKeys> tile;
};

// Copies through registers to the same shared-memory address in every block of the cluster.
template <int kCluster>
struct CopyToCluster {
  int rank;

  template <class Element>
  __device__ void operator()(Element* to, const Element* from, bool valid) const {
    const uint4 chunk = valid ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
    *reinterpret_cast<uint4*>(to) = chunk;
#pragma unroll
    for (int i = 1; i < kCluster; ++i)
      arch::store_remote(arch::remote_address(to, (rank + i) % kCluster), chunk);
  }
};

// Gathers the block's share of the tile's rows for all blocks, and its own copy of the keys.
template <class Block, class Element>
__device__ void load_share(KeyTile<Element, Block::kKeys>& tile, const AnyTileProblem& p,
                           const TileAddress& at, int rank, int begin, int visible) {
  constexpr int kShare = Block::kKeys / Block::kCluster;
  const int first = rank * kShare;
  const CopyToCluster<Block::kCluster> copy{rank};
  gather<kShare>(tile.k + first * kPitch, p.k, p, at, begin + first, visible, copy);
  gather<kShare>(tile.v + first * kPitch, p.v, p, at, begin + first, visible, copy);
  for (int i = threadIdx.x; i < Block::kKeys; i += blockDim.x)
    tile.keys[i] = begin + i < visible ? p.keys(at)[begin + i] : kHiddenKey;
}

template <class Block>
__device__ void meet() {
  if constexpr (Block::kCluster > 1) {
    arch::cluster_sync();
  } else {
    __syncthreads();
  }
}

template <class Element, class Block>
__global__ void __launch_bounds__(kBlockThreads, 1) attend_block(const AnyTileProblem p) {
  constexpr int kKeys = Block::kKeys;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<BlockShared<Element, Block>*>(shared_memory);
  const int rank = blockIdx.x % Block::kCluster;
  TileAddress at = p.address(blockIdx.x / Block::kCluster);
  at.first_row += rank * Block::kRows;
  const int visible = p.visible_keys(at);  // the same in all blocks of the cluster, so all meet equally often
  const int first = threadIdx.x / 32 * 16, row = first + threadIdx.x % 32 / 4;
  load_queries(shared.queries, p, at, Block::kRows);
  float o[Block::kSlices][kDim / 8][4] = {};
  RowState state[Block::kSlices][2];
  for (int begin = 0; begin < visible; begin += kKeys) {
    meet<Block>();  // all blocks run, and no warp of any still reads the previous tile
    load_share<Block>(shared.tile, p, at, rank, begin, visible);
    meet<Block>();
#pragma unroll
    for (int slice = 0; slice < Block::kSlices; ++slice) {
      float s[kKeys / 8][4];
      multiply_keys<kKeys>(s, shared.queries + (slice * kSliceRows + first) * kPitch, shared.tile.k);
      mask_scores<kKeys>(s, p, at, slice * kSliceRows + row, shared.tile.keys, begin, visible);
      online_softmax<kKeys>(s, o[slice], state[slice], p.scale);
      multiply_values<kKeys>(o[slice], s, shared.tile.v);
    }
  }
#pragma unroll
  for (int slice = 0; slice < Block::kSlices; ++slice) {
    const float sums[2] = {quad_sum(state[slice][0].sum), quad_sum(state[slice][1].sum)};
    store_rows<Element>(p, at, slice * kSliceRows + row, o[slice], sums);
  }
}

template <class Block>
Plan plan_block(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  constexpr int kRows = Block::kRows * Block::kCluster;
  return with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    Plan plan{.tile = {.q = kRows, .k = Block::kKeys}};
    plan.kernels = {{"attend_block", reinterpret_cast<const void*>(&attend_block<Element, Block>),
                     int64_t{AnyTileProblem::of(spec, kRows).items} * Block::kCluster, kBlockThreads,
                     sizeof(BlockShared<Element, Block>)}};
    plan.unit = MathUnit::f16;
    return plan;
  });
}

template <class Block>
void launch_block(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& arguments) {
  const KernelLaunch& kernel = plan.kernels.front();
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Block::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = {static_cast<unsigned>(kernel.blocks), 1, 1};
  config.blockDim = {kBlockThreads, 1, 1};
  config.dynamicSmemBytes = static_cast<size_t>(kernel.shared_bytes);
  config.stream = arguments.stream;
  config.attrs = &cluster;
  config.numAttrs = Block::kCluster > 1 ? 1 : 0;
  const auto problem = AnyTileProblem::of(spec, plan.tile.q, arguments);
  with_element(dtype, [&](auto element) {
    check_cuda(cudaLaunchKernelEx(&config, &attend_block<decltype(element), Block>, problem),
               "launch " + kernel.name);
  });
}

template <class Block>
std::vector<KernelTrace> trace_block(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_items<AnyTileProblem>(
      spec, dtype, plan.kernels[0], plan.tile.q,
      {.tile_keys = Block::kKeys, .padded_dim = kDim, .through_l1 = true, .cluster = Block::kCluster});
}

}  // namespace splash::gpu::kascade
