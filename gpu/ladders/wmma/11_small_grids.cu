// Beyond source 002, for its own size: at B 2, H 8, S 512 rung 10 has 48 blocks, each of which walks four
// tiles of keys one after the other, while 84 multiprocessors idle. Here a block takes only 64 queries and
// its warpgroups share the keys. With four warpgroups, each walks every fourth tile with its own maximum, sum
// and output, and the four are combined at the end. This splits keys as Flash-Decoding does across blocks,
// but within one block, so nothing passes through global memory.
//
// Predicted: 128 blocks, all at once. 64 queries x 512 keys at head_dim 64 are 2048 cycles of products and
// 2048 of exponentials, partly overlapped: 1.5 us. Loading 136 KB per block from L2 takes about 1 us,
// combining 64 x 64 x 4 floats and storing 0.5 us, the launch 2 us. In all some 5 us, where rung 10 takes 10.
// If rung 10's blocks would fill the multiprocessors, rung 10 is the better kernel, and this rung launches
// it.

#include "gpu/ladders/wmma/hopper.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

constexpr char kName[] = "split-keys", kLargeGrids[] = "wmma/10-warp-specialised";

template <int kDim>
struct Config {
  static constexpr int kGroups = kDim == 256 ? 2 : 4;  // 128 registers a thread with four
  static constexpr int kTileN = kDim == 64 ? 128 : 64;
  static constexpr int kThreads = kGroups * kWarpgroup;
  static constexpr int kPartialStride = kDim + 8;  // floats: rows of a partial output meet different banks
};

template <class T, int kDim>
struct Shared {
  using C = Config<kDim>;
  struct KeysAndValues {
    alignas(1024) T k[C::kTileN * kDim];
    alignas(1024) T v[C::kTileN * kDim];
  };
  union alignas(1024) Group {
    KeysAndValues tiles;
    float partial[kRows * C::kPartialStride];  // of the output, after the last key
  };
  alignas(1024) T q[kRows * kDim];
  Group group[C::kGroups];
  float max[C::kGroups][kRows], sum[C::kGroups][kRows];
  uint64_t q_full, k_full[C::kGroups], v_full[C::kGroups];
};

// One warpgroup's share of the keys.
template <class T, int kDim>
struct Partial {
  using C = Config<kDim>;
  RowPair rows;
  float out[kDim / 2];

  __device__ __forceinline__ void walk(Shared<T, kDim>& shared, const Maps& maps, const Problem& p,
                                       const BlockTask& task, int group, int row) {
    auto& tiles = shared.group[group].tiles;
    const bool loader = threadIdx.x % kWarpgroup == 0;
    const int count = (task.end_key + C::kTileN - 1) / C::kTileN;
    const int unmasked_end = p.scale_log2 < 0 ? 0 : end_of_keys(p, task.first_query);
    const RowPairMask mask(p, task.first_query + row);
    const auto load = [&](const CUtensorMap* map, T* to, uint64_t* full, int tile) {
      if (!loader || tile >= count) return;
      arch::mbarrier_arrive_expect(full, C::kTileN * kDim * 2);
      load_tile<kDim, C::kTileN>(to, map, full, tile * C::kTileN, task.kv_head);
    };
    // Loads into the buffer of a tile once all four warps of the group have read it. The condition is the
    // same for all groups: they pass equally many barriers, and if no group has another tile, none waits.
    const auto replace = [&](const CUtensorMap* map, T* to, uint64_t* full, int tile) {
      if (tile - group < count) arch::named_barrier_sync(1 + group, kWarpgroup);
      load(map, to, full, tile);
    };
    load(&maps.k, tiles.k, &shared.k_full[group], group);
    load(&maps.v, tiles.v, &shared.v_full[group], group);
    arch::mbarrier_wait(&shared.q_full, 0);
    uint32_t parity = 0;
    for (int tile = group; tile < count; tile += C::kGroups, parity ^= 1) {
      float scores[C::kTileN / 2], correction[2];
      uint32_t probabilities[C::kTileN / 16][4];
      arch::mbarrier_wait(&shared.k_full[group], parity);
      multiply_scores<T, kDim, C::kTileN>(scores, shared.q, tiles.k);
      arch::wgmma_wait<0>();
      arch::wgmma_hold(scores);
      replace(&maps.k, tiles.k, &shared.k_full[group], tile + C::kGroups);
      const int first_key = tile * C::kTileN;
      if (first_key + C::kTileN > unmasked_end)
        mask.apply(scores, first_key + 2 * static_cast<int>(threadIdx.x % 4));
      rows.exponentiate(scores, fabsf(p.scale_log2), correction);
      rescale(out, correction);
      pack<T>(probabilities, scores);
      arch::mbarrier_wait(&shared.v_full[group], parity);
      multiply_values<T, kDim, C::kTileN>(out, probabilities, tiles.v);
      arch::wgmma_wait<0>();
      arch::wgmma_hold(out);
      replace(&maps.v, tiles.v, &shared.v_full[group], tile + C::kGroups);
    }
  }

  // Publishes this part's maxima and sums to the block, then scales its output by its share of the whole.
  __device__ __forceinline__ void leave(Shared<T, kDim>& shared, float scale, int group, int row) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(rows.sum[r]);
      if (lane % 4 == 0) {
        shared.max[group][row + 8 * r] = rows.max[r];
        shared.sum[group][row + 8 * r] = sum;
      }
    }
    __syncthreads();
    float share[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float max = -kInfinity, sum = 0;
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) max = fmaxf(max, shared.max[g][row + 8 * r]);
      const float shift = shift_of(max) * scale;
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g)
        sum += shared.sum[g][row + 8 * r] * arch::exp2_approx(shared.max[g][row + 8 * r] * scale - shift);
      share[r] = sum == 0 ? 0.0F : arch::exp2_approx(rows.max[r] * scale - shift) / sum;
    }
    float* const to = shared.group[group].partial + row * C::kPartialStride + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < kDim / 2; i += 2) {
      const int r = i % 4 / 2;
      *reinterpret_cast<float2*>(to + 8 * r * C::kPartialStride + i / 4 * 8) =
          make_float2(out[i] * share[r], out[i + 1] * share[r]);
    }
  }
};

// Writes the sum of the partial outputs, 16 bytes per thread and iteration.
template <class T, int kDim>
__device__ __forceinline__ void combine(const Shared<T, kDim>& shared, const Problem& p,
                                        const BlockTask& task) {
  using C = Config<kDim>;
  constexpr int kVector = 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kDim / kVector; i += C::kThreads) {
    const int row = i / (kDim / kVector), column = i % (kDim / kVector) * kVector;
    const int query = task.first_query + row;
    if (query >= p.q_len || column >= p.head_dim) continue;
    float sum[kVector] = {};
#pragma unroll
    for (int g = 0; g < C::kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        sum[j] += shared.group[g].partial[row * C::kPartialStride + column + j];
    }
    const uint4 packed = make_uint4(arch::pack_pair<T>(sum[0], sum[1]), arch::pack_pair<T>(sum[2], sum[3]),
                                    arch::pack_pair<T>(sum[4], sum[5]), arch::pack_pair<T>(sum[6], sum[7]));
    *reinterpret_cast<uint4*>(static_cast<T*>(p.out) + task.q_offset + int64_t{query} * p.head_dim + column) =
        packed;
  }
}

template <class T, int kDim>
__global__ void __launch_bounds__(Config<kDim>::kThreads, 1)
    attention(Problem p, const __grid_constant__ Maps maps) {
  using C = Config<kDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T, kDim>*>(memory);
  const BlockTask task = block_task(p, kRows, p.causal);
  if (threadIdx.x == 0) {
    arch::mbarrier_init(&shared.q_full, 1);
    for (int g = 0; g < C::kGroups; ++g) {
      arch::mbarrier_init(&shared.k_full[g], 1);
      arch::mbarrier_init(&shared.v_full[g], 1);
    }
    arch::mbarrier_init_fence();
    arch::mbarrier_arrive_expect(&shared.q_full, kRows * kDim * 2);
    load_tile<kDim, kRows>(shared.q, &maps.q, &shared.q_full, task.first_query, task.head);
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int row =
      static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + static_cast<int>(threadIdx.x) % kWarp / 4;
  Partial<T, kDim> partial;
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) partial.out[i] = 0;
  partial.walk(shared, maps, p, task, group, row);
  partial.leave(shared, fabsf(p.scale_log2), group, row);
  __syncthreads();
  combine(shared, p, task);
}

Plan split_plan(const AttentionSpec& spec, Dtype dtype) {
  return for_instance(dtype, spec.shape.head_dim, [&](auto instance) {
    using I = decltype(instance);
    using T = typename I::Element;
    using C = Config<I::kHeadDim>;
    return tiled_plan(
        spec, {.q = kRows, .k = C::kTileN, .instruction_q = 64}, kName, C::kThreads,
        {reinterpret_cast<const void*>(attention<T, I::kHeadDim>), sizeof(Shared<T, I::kHeadDim>)});
  });
}

// Query rows that a multiprocessor works through one after the other, one block at a time.
int64_t rows_in_turn(const Plan& plan, const DeviceInfo& device) {
  return (plan.kernels.front().blocks + device.multiprocessors - 1) / device.multiprocessors * plan.tile.q;
}

// Measured: the split kernel takes 1.5 times as long per row, at every head_dim.
Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  Plan split = split_plan(spec, dtype);
  Plan large = find_variant(kLargeGrids).plan(spec, dtype, device);
  return 3 * rows_in_turn(split, device) <= 2 * rows_in_turn(large, device) ? split : large;
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  if (plan.kernels.front().name == kName) {
    launch_with_maps(spec, dtype, plan, args);
  } else {
    find_variant(kLargeGrids).launch(spec, dtype, plan, args);
  }
}

std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const KernelLaunch& kernel = plan.kernels.front();
  if (kernel.name != kName) return find_variant(kLargeGrids).trace(spec, dtype, plan);
  return trace_walk(spec, dtype, plan, {.at_once = kernel.threads / kWarpgroup, .threads_of_row = 4});
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 11,
    .name = "small-grids",
    .idea = "where blocks are fewer than multiprocessors: 64 queries a block, its warpgroups share the keys",
    .finding =
        "1.53x over rung 10 at B 2, by graph replay 6.6 us against cuDNN's 9.5, where 5 were predicted; "
        "larger grids run rung 10 itself.",
    .limits = limits_of({.compute_capability = 90}),
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
