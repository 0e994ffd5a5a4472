#pragma once
// The three kernels in one launch: rungs 2 to 6, 8 and 9. A warp owns 8 rows from scores to output. It
// appends the kept pairs (score, key) of each tile to the rows' lists in shared memory. A full list drops the
// pairs below a certified bound on the threshold tau. If a list is still full, exact_row computes the row.

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/ladders/splash/exact_row.cuh"
#include "gpu/ladders/splash/row_list.cuh"

namespace splash::gpu::sparse {

constexpr int kListRoom = 128;  // pairs per row

// A block's tile, and where it lies in shared memory.
struct FusedTile {
  static constexpr int kQueries = 32, kKeys = 64, kWarps = 4;
  static constexpr bool kScoresOverKeys = false;   // scores have their own place
  static constexpr int kScorePitch = kKeys + 4;    // rows 4 apart start 16 banks apart
  static constexpr int kSumLanes = 32;             // lanes that hold sums of values
  static constexpr int kRows = kQueries / kWarps;  // per warp
};

enum class Keep {
  top_k,        // k_keep of each block, then entmax over the lists
  above_bound,  // the same, but only above the row's certified bound on tau: other scores have p = 0
  power,        // k_keep of each block, weighed at once because p needs no threshold
};

struct RowState {
  Sight sight;
  int count;    // pairs listed
  int trigger;  // above_bound: a list that reaches this count raises the bound
  float bound;
  bool poisoned, crowded;
};

template <class Tile>
struct RowLists {
  float scores[Tile::kQueries][kListRoom];
  int keys[Tile::kQueries][kListRoom];
};
template <class Tile>
struct RowSums {
  float values[Tile::kQueries][4][Tile::kSumLanes];  // in the layout of add_values
  float weights[Tile::kQueries][32];                 // one share per lane
};

// Floats of shared memory before the lists or sums.
template <class Tile>
__host__ __device__ constexpr int fused_floats(int head_dim) {
  const int keys = Tile::kKeys * row_pitch(head_dim), scores = Tile::kQueries * Tile::kScorePitch;
  const int both = !Tile::kScoresOverKeys ? keys + scores : keys > scores ? keys : scores;
  return Tile::kQueries * row_pitch(head_dim) + both;
}

// The lanes' two places of each key block: scores, and which are kept.
template <Keep kKeep, class Tile, class Use>
__device__ __forceinline__ void select_kept(const Problem& p, const float* scores, int first_key,
                                            RowState& state, const Use& use) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = 0; first < Tile::kKeys; first += p.block) {
    float score[2];
    uint32_t order[2];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const int place = 32 * w + lane;
      const bool visible = place < p.block && state.sight.sees(first_key + first + place);
      score[w] = visible ? scores[first + place] : -INFINITY;
      order[w] = order_of(score[w], visible && (kKeep != Keep::above_bound || !(score[w] <= state.bound)));
    }
    if (kKeep == Keep::above_bound && !__any_sync(kWarp, (order[0] | order[1]) != kHidden)) continue;
    state.poisoned |= __any_sync(kWarp, order[0] == kPoison || order[1] == kPoison) != 0;
    const uint32_t kept = keep_largest(order, p.k_keep);
    use(first_key + first, score, kept);
  }
}

// Computes a bound on tau from the listed pairs and drops the pairs below it.
__device__ __forceinline__ void tighten(const Entmax& entmax, float* scores, int* keys, RowState& state) {
  const float largest = list_max(scores, state.count);
  const float offset = bisect(scores, state.count, largest, entmax, kBoundSteps);
  state.bound = fmaxf(state.bound, certified_bound(largest, offset, entmax));
  state.count = drop_below(state.bound, scores, keys, state.count);
  state.trigger = 2 * state.count + 16;
}

template <Keep kKeep, class Tile>
__device__ __forceinline__ void list_kept(const Problem& p, const Entmax& entmax, const float* scores,
                                          int first_key, float* list_scores, int* list_keys,
                                          RowState& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32, tile_room = Tile::kKeys / p.block * p.k_keep;
  const bool full = state.count + tile_room > kListRoom;
  if (full || (kKeep == Keep::above_bound && state.count >= state.trigger)) {
    tighten(entmax, list_scores, list_keys, state);
    state.crowded |= state.count + tile_room > kListRoom;
  }
  if (state.crowded || state.poisoned) return;
  select_kept<kKeep, Tile>(
      p, scores, first_key, state, [&](int block_key, const float(&score)[2], uint32_t kept) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const uint32_t mine = __ballot_sync(kWarp, kept >> w & 1);
          if (kept >> w & 1) {
            const int place = state.count + __popc(mine & ((1u << lane) - 1));
            list_scores[place] = score[w];
            list_keys[place] = block_key + 32 * w + lane;
          }
          state.count += __popc(mine);
        }
        if constexpr (kKeep == Keep::above_bound) {  // the largest score alone is a bound
          const float largest =
              warp_max(fmaxf(kept & 1 ? score[0] : -INFINITY, kept & 2 ? score[1] : -INFINITY));
          state.bound = fmaxf(state.bound, certified_bound(largest, -1, entmax));
        }
      });
  __syncwarp();
}

template <class Tile, class Loads>
__device__ __forceinline__ void weigh_kept(const Problem& p, float alpha, const float* scores, int first_key,
                                           const Loads& values, int64_t first_value,
                                           float (&sums)[4][Tile::kSumLanes], float (&weights)[32],
                                           RowState& state) {
  static_assert(Tile::kSumLanes == 32 || Loads::width == 4);  // else every lane holds dimensions
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (lane < Tile::kSumLanes) sum[i] = sums[i][lane];
  select_kept<Keep::power, Tile>(
      p, scores, first_key, state, [&](int block_key, const float(&score)[2], uint32_t kept) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const float weight = kept >> w & 1 && score[w] > 0 ? powf(score[w], alpha) : 0.0f;
          weights[lane] += weight;
          add_values(values, first_value, p.head_dim, weight, block_key + 32 * w + lane, sum);
        }
      });
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (lane < Tile::kSumLanes) sums[i][lane] = sum[i];
}

// Whether a score of the warp's 8 rows exceeds its row's bound (or is NaN). Scores still lack the scale.
template <class Tile>
__device__ __forceinline__ bool any_above(const Problem& p,
                                          const float (&s)[Tile::kRows / 2][Tile::kKeys / 16],
                                          const RowState* states) {
  bool above = false;
#pragma unroll
  for (int r = 0; r < Tile::kRows / 2; ++r) {
    const float bound = states[static_cast<int>(threadIdx.x) % 32 / 16 * (Tile::kRows / 2) + r].bound;
#pragma unroll
    for (int c = 0; c < Tile::kKeys / 16; ++c) above |= !(p.scale * s[r][c] <= bound);
  }
  return __any_sync(kWarp, above);
}

template <Keep kKeep, class Tile, class Loads>
__global__ void __launch_bounds__(32 * Tile::kWarps)
    fused_kernel(const __grid_constant__ Problem p, const Loads keys, const Loads values) {
  extern __shared__ __align__(16) float shared[];
  static_assert(
      !(Tile::kScoresOverKeys && kKeep == Keep::above_bound));  // a warp without scores skips barriers
  constexpr int kQueries = Tile::kQueries, kKeys = Tile::kKeys, kRows = Tile::kRows;
  __shared__ RowState states[kQueries];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x) % p.heads, row0 = warp * kRows;
  const int first =
      (static_cast<int>(gridDim.x / p.heads) - 1 - static_cast<int>(blockIdx.x) / p.heads) * kQueries;
  float* const q_tile = shared;
  float* const k_tile = q_tile + kQueries * row_pitch(p.head_dim);
  float* const scores = Tile::kScoresOverKeys ? k_tile : k_tile + kKeys * row_pitch(p.head_dim);
  auto& lists = *reinterpret_cast<RowLists<Tile>*>(shared + fused_floats<Tile>(p.head_dim));
  auto& sums = *reinterpret_cast<RowSums<Tile>*>(&lists);
  const Head h = head_of(p, head);
  const Entmax entmax(h.alpha);
  const int64_t key_row = static_cast<int64_t>(head / p.group) * p.kv_len;

  const Sight tile_sight = sight_of_tile(p, h, first, kQueries);
  load_rows(PlainLoads{h.q}, first, kQueries, p.q_len, p.head_dim, q_tile);
  for (int r = row0; r < row0 + kRows; ++r) {
    if (lane == 0) states[r] = {sight_of(p, h, first + r), 0, 16, -INFINITY, false, false};
    if constexpr (kKeep == Keep::power) {
      for (int i = 0; i < 4 && lane < Tile::kSumLanes; ++i) sums.values[r][i][lane] = 0;
      sums.weights[r][lane] = 0;
    }
  }

  for (int key = 0; key < p.kv_len; key += kKeys) {
    const bool visible = static_cast<int>(threadIdx.x) < kKeys && tile_sight.sees(key + threadIdx.x);
    if (!__syncthreads_or(visible)) continue;  // also: all have read the keys of the tile before
    load_rows(keys, key_row + key, kKeys, key_row + p.kv_len, p.head_dim, k_tile);
    __syncthreads();
    float s[kRows / 2][kKeys / 16];
    multiply(q_tile + row0 * row_pitch(p.head_dim), k_tile, p.head_dim, s);
    if (kKeep == Keep::above_bound && !any_above<Tile>(p, s, states + row0)) continue;
    if constexpr (Tile::kScoresOverKeys) __syncthreads();  // all have read the keys
    store_scores(s, p.scale, scores + row0 * Tile::kScorePitch, Tile::kScorePitch);
    __syncwarp();
    for (int r = row0; r < row0 + kRows; ++r) {
      RowState state = states[r];
      if constexpr (kKeep == Keep::power) {
        weigh_kept<Tile>(p, h.alpha, scores + r * Tile::kScorePitch, key, values, key_row, sums.values[r],
                         sums.weights[r], state);
      } else {
        list_kept<kKeep, Tile>(p, entmax, scores + r * Tile::kScorePitch, key, lists.scores[r], lists.keys[r],
                               state);
      }
      __syncwarp();  // all have read the state
      if (lane == 0) states[r] = state;
    }
    __syncwarp();  // also: the scores are read before the next tile's are written
  }

  __syncwarp();
  for (int r = row0; r < row0 + kRows && first + r < p.q_len; ++r) {
    const RowState state = states[r];
    if constexpr (kKeep == Keep::power) {
      float sum[4] = {};
      for (int i = 0; i < 4 && lane < Tile::kSumLanes; ++i) sum[i] = sums.values[r][i][lane];
      const float total = warp_sum(sums.weights[r][lane]);
      const float factor = state.poisoned ? NAN : !p.normalized ? 1.0f : total > 0 ? 1 / total : 0.0f;
      store_row<Loads::width>(h.out + static_cast<int64_t>(first + r) * p.head_dim, p.head_dim, factor, sum);
    } else if (!state.crowded || state.poisoned) {
      finish_row(p, h, values, key_row, first + r, lists.scores[r], lists.keys[r], state.count,
                 state.poisoned);
    }
  }
  if constexpr (kKeep != Keep::power) {
    __syncwarp();  // the warp's lists are free now
    for (int r = row0; r < row0 + kRows && first + r < p.q_len; ++r) {
      if (states[r].crowded && !states[r].poisoned)
        exact_row(p, head, first + r, lists.scores[row0], lists.keys[row0], kRows * kListRoom);
    }
  }
}

template <Keep kKeep, class Loads, class Tile = FusedTile>
Plan plan_fused(const AttentionSpec& spec, Dtype, const DeviceInfo&) {
  const Problem p = make_problem(spec);
  const int64_t lists = kKeep == Keep::power ? sizeof(RowSums<Tile>) : sizeof(RowLists<Tile>);
  Plan plan;
  plan.tile = {Tile::kQueries, Tile::kKeys};
  plan.kernels = {{"fused_kernel", reinterpret_cast<const void*>(&fused_kernel<kKeep, Tile, Loads>),
                   ceil_div(p.q_len, Tile::kQueries) * p.heads, 32 * Tile::kWarps,
                   4 * fused_floats<Tile>(p.head_dim) + lists}};
  return plan;
}

// The data decide how many values a query weighs; the trace counts one, the minimum.
inline std::vector<KernelTrace> trace_fused(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const auto run = [tile = plan.tile, p = make_problem(spec), rows = TensorRows(spec.shape, dtype),
                    seen = SeenTiles(spec, plan.tile.q, plan.tile.k)](int64_t block,
                                                                      BlockTrace& trace) mutable {
    const QueryTile queries = query_tile(p, block, tile.q);
    rows.read_q(trace, queries.head, queries.first, tile.q);
    const bool any = trace_scores(trace, seen, queries, tile, p.head_dim, 1, [&](int64_t key_tile) {
      rows.read_k(trace, queries.kv_head, key_tile * tile.k, tile.k);
    });
    if (any) rows.read_one_value_each(trace, queries.kv_head, queries.first, tile.q);
    trace.next_step();
    rows.write_out(trace, queries.head, queries.first, tile.q);
  };
  return {{.kernel = "fused_kernel", .blocks = plan.kernels[0].blocks, .through_l1 = true, .run = run}};
}

template <Keep kKeep, class Tile = FusedTile, class Loads>
void launch_fused(const AttentionSpec& spec, const Plan& plan, const Arguments& arguments, const Loads& keys,
                  const Loads& values) {
  const KernelLaunch& kernel = plan.kernels.front();
  fused_kernel<kKeep, Tile, Loads>
      <<<static_cast<unsigned>(kernel.blocks), kernel.threads, kernel.shared_bytes, arguments.stream>>>(
          make_problem(spec, arguments), keys, values);
  check_launch("fused_kernel");
}

}  // namespace splash::gpu::sparse
