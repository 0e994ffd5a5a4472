#pragma once
// Forward on Hopper (sm_90a): screen, solve, gather, in one launch. A block of two warpgroups owns 128
// queries: Q in registers, K through a ring of tiles that the copy engine fills, V only where p > 0. Two
// blocks a multiprocessor, so that one's products hide the other's solving and gathering.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/entmax/finish.cuh"
#include "gpu/entmax/screen.cuh"

namespace splash::gpu::entmax {

constexpr int kQueries = 128, kSampled = 4;

// A tile of keys is multiplied half by half, each into registers of its own: while the tensor cores work on
// one half, the warps look through the other. Q, too, lies in registers, so that a product reads but its keys
// from shared memory.
template <int kPanels>  // of 64 dimensions
struct ForwardTiles {
  using Lists = entmax::Lists<14>;
  static constexpr int kKeys = kPanels == 1 ? 128 : 64, kPanelBytes = kKeys * 128, kStages = 3;
  Lists lists;
  alignas(1024) unsigned char keys[kStages][kPanels * kPanelBytes];
  uint64_t full[kStages], empty[kStages];
};

// Which tiles of keys a block visits, and in which order: the last visible one first, for recent keys tend to
// matter most; then the first one, for many models attend to it; then the others, falling.
struct TileOrder {
  int count;
  __device__ __forceinline__ int operator[](int i) const {
    return i == 0 ? count - 1 : i == 1 ? 0 : count - i;
  }
};

// The queries' fragments as wgmma takes them from registers: 16 rows a warp. Rows and dimensions outside are
// zeros.
template <int kSteps>
__device__ __forceinline__ void load_queries(const Problem& p, const uint16_t* q, int query,
                                             uint32_t (&fragments)[kSteps][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = query + 8 * (i % 2), column = 16 * step + 2 * (lane % 4) + 8 * (i / 2);
      fragments[step][i] = row < p.q_len && column < p.head_dim
                               ? *reinterpret_cast<const uint32_t*>(q + int64_t{row} * p.head_dim + column)
                               : 0;
    }
  }
}

template <class T, int kPanels>
__global__ void __launch_bounds__(kThreads, kPanels <= 2 ? 2 : 1)
    forward_kernel(const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap k_map) {
  using Tiles = ForwardTiles<kPanels>;
  constexpr int kKeys = Tiles::kKeys, kHalf = kKeys / 2, kStages = Tiles::kStages;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const int tile = static_cast<int>(gridDim.x / p.heads) - 1 - static_cast<int>(blockIdx.x) / p.heads;
  const int group_query = tile * kQueries + warp / 4 * 64, query = group_query + warp % 4 * 16 + lane / 4;
  const auto end_of = [&](int row) { return min(row + p.reach, p.kv_len); };
  const int block_end = end_of(min(tile * kQueries + kQueries, p.q_len) - 1);
  const int whole_end = end_of(group_query);  // every row of the warpgroup sees the keys below
  const TileOrder order{(max(block_end, 0) + kKeys - 1) / kKeys};

  // A pass over a part of the tiles finds bounds, one over all of them finds what exceeds those.
  const int samples = (order.count + kSampled - 1) / kSampled, turns = samples + order.count;
  const auto load = [&](int i, int stage) {
    uint64_t* const full = &tiles.full[stage];
    const int key = kKeys * order[i < samples ? i * kSampled : i - samples];
    arch::mbarrier_arrive_expect(full, sizeof tiles.keys[0]);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      arch::tensor_load(tiles.keys[stage] + panel * Tiles::kPanelBytes, &k_map, full, 64 * panel, key,
                        head / p.group);
  };
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) {
      arch::mbarrier_init(&tiles.full[s], 1);
      arch::mbarrier_init(&tiles.empty[s], kThreads / 32);
    }
    arch::mbarrier_init_fence();
    for (int i = 0; i < min(kStages, turns); ++i) load(i, i);
  }
  uint32_t q[4 * kPanels][4];
  load_queries(p, static_cast<const uint16_t*>(p.q) + int64_t{head} * p.q_len * p.head_dim, query, q);

  const Entmax entmax = entmax_of(p, head);
  Screen<kHalf, typename Tiles::Lists> screen(tiles.lists, entmax);
  Rows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (query + 8 * half >= p.q_len) rows.bound[half] = INFINITY;
  }
  __syncthreads();

  const auto multiply = [&](float(&acc)[kHalf / 2], const unsigned char* keys) {
    arch::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const uint64_t panel = arch::k_major_descriptor(keys + step / 4 * Tiles::kPanelBytes);
      arch::wgmma<T>(acc, q[step], arch::advance(panel, 32 * (step % 4)), step > 0);
    }
    arch::wgmma_commit();
  };
  const auto hide = [&](float(&acc)[kHalf / 2], int first_key) {
#pragma unroll
    for (int j = 0; j < kHalf / 2; ++j) {
      const int key = first_key + 2 * (lane % 4) + 8 * (j / 4) + j % 2;
      if (key >= end_of(query + 8 * (j / 2 % 2))) acc[j] = -INFINITY;
    }
  };
  int stage = 0, before = kStages - 1, next_load = kStages - 1;
  uint32_t parity = 0, parity_before = 1;
  const auto turn = [&](int key, const auto& use) {
    if (thread == 0 && next_load >= kStages && next_load < turns) {  // where the tile before lay
      arch::mbarrier_wait(&tiles.empty[before], parity_before);
      load(next_load, before);
    }
    __syncwarp();
    ++next_load;
    float first[kHalf / 2], second[kHalf / 2];
    arch::mbarrier_wait(&tiles.full[stage], parity);
    multiply(first, tiles.keys[stage]);
    multiply(second, tiles.keys[stage] + kHalf * 128);
    arch::wgmma_wait<1>();
    arch::wgmma_hold(first);
    if (key + kHalf > whole_end) [[unlikely]]
      hide(first, key);
    use(first, key, false);
    arch::wgmma_wait<0>();
    arch::wgmma_hold(second);
    __syncwarp();
    if (lane == 0) arch::mbarrier_arrive(&tiles.empty[stage]);
    if (key + kKeys > whole_end) [[unlikely]]
      hide(second, key + kHalf);
    use(second, key + kHalf, true);
    before = stage;
    parity_before = parity;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    parity ^= stage == 0;
  };
  if (samples > 0) {
    Samples largest;
    for (int i = 0; i < samples; ++i)
      turn(kKeys * order[i * kSampled], [&](const float(&acc)[kHalf / 2], int, bool) { largest.take(acc); });
    screen.bound_from(largest, rows);
  }
  int due = 4;
  for (int i = 0; i < order.count; ++i) {
    turn(kKeys * order[i], [&](const float(&acc)[kHalf / 2], int key, bool second) {
      screen.take(acc, key, second && i == due, rows);
    });
    due = i == due ? 2 * due : due;
  }
  finish_rows<T, kPanels>(p, head, query - lane / 4, entmax, tiles.lists, rows);
}

}  // namespace splash::gpu::entmax
