#pragma once
// The anchor's two passes over all visible scores (sm_90a). In a block one thread issues the TMA loads and
// two warpgroups multiply 64 rows each, then work on their scores. The exponentials bound both passes: an SM
// computes 16 per cycle, so a tile of 128 x 128 takes 1024 cycles, as many as its products take. Two blocks
// of an SM overlap one's products with the other's exponentials, and hide their latencies.

#include "gpu/kascade/consumer.cuh"

namespace splash::gpu::kascade {

constexpr int kAnchorStages = 2, kSweepBlocks = 2;        // of an SM
constexpr int kSweepThreads = 32 * (kConsumerWarps + 1);  // the last warp loads

template <int kDim>
struct AnchorShared {
  alignas(1024) unsigned char q[kTileBytes<kDim>], k[kAnchorStages][kTileBytes<kDim>];
  uint64_t k_full[kAnchorStages], k_empty[kAnchorStages], q_full, q_empty;
  float normalizers[2][kTileRows];  // of the item, for each warpgroup
};

// What one launch works on: lists [first, first + lists) in the order of Problem::address.
struct AnchorSlab {
  CUtensorMap queries, keys;  // tiles of 32 and 128 rows, 64 columns
  Problem problem;
  int first = 0, lists = 0;
  int64_t pitch = 0;             // floats per list in `pooled`
  float* normalizers = nullptr;  // [list * row_blocks, 128]: log2 of the row's sum of 2^score
  float* pooled = nullptr;       // [lists, pitch]

  // Number of keys that the tile's last query sees; no other query of the tile sees a key beyond them.
  __device__ int visible(const TileAddress& at) const {
    return max(0, min(problem.kv_len, problem.last_key(at) + 1));
  }
};

// Which list a block takes in each round, forth and back: lists become shorter, and so each block gets as
// much as the others.
__device__ inline int list_of_round(int round) {
  const int blocks = gridDim.x, block = blockIdx.x;
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

// One thread is enough, because TMA does the copying. Rows past the end of a head arrive as zeros; loads for
// heads that the group does not have start past that end on purpose.
template <int kDim>
__device__ void produce_dense(const AnchorSlab& slab, AnchorShared<kDim>& shared) {
  if (threadIdx.x % 32 != 0) return;
  const Problem& p = slab.problem;
  arch::RingPosition<kAnchorStages> turn;
  arch::RingPosition<1> q_turn;
  for (int round = 0, list; (list = list_of_round(round)) < slab.lists; ++round) {
    for (int block = 0; block < p.row_blocks; ++block) {
      const TileAddress at = p.address((slab.first + list) * p.row_blocks + block);
      const int visible = slab.visible(at), kv_head = static_cast<int>(at.kv_head);
      arch::mbarrier_wait(&shared.q_empty, q_turn.parity ^ 1);
      arch::mbarrier_arrive_expect(&shared.q_full, kTileBytes<kDim>);
      for (int i = 0; i < kTileRows / kTokens; ++i) {
        const int head = at.first_row / kTokens + i, token = head < p.group ? at.tile * kTokens : p.q_len;
        for (int panel = 0; panel < kDim / 64; ++panel) {
          arch::tensor_load(shared.q + panel * kPanelBytes + i * kTokens * 128, &slab.queries, &shared.q_full,
                            panel * 64, token, kv_head * p.group + min(head, p.group - 1));
        }
      }
      q_turn.next();
      for (int begin = 0; begin < visible; begin += kTileRows) {
        uint64_t* const full = &shared.k_full[turn.stage];
        arch::mbarrier_wait(&shared.k_empty[turn.stage], turn.parity ^ 1);
        arch::mbarrier_arrive_expect(full, kTileBytes<kDim>);
        for (int panel = 0; panel < kDim / 64; ++panel) {
          arch::tensor_load(shared.k[turn.stage] + panel * kPanelBytes, &slab.keys, full, panel * 64, begin,
                            kv_head);
        }
        turn.next();
      }
    }
  }
}

// Pass 1: each row's normaliser. It is +inf for rows that see no key or do not exist, so that their
// probabilities become 0 in pass 2.
struct RowNormalizers {
  static constexpr bool kKeysAreRows = false;

  const AnchorSlab& slab;
  TileAddress at;
  int item, row;
  RowState state[2];

  __device__ RowNormalizers(const AnchorSlab& slab, const TileAddress& at, int item, int, int row, int,
                            float*)
      : slab(slab), at(at), item(item), row(row) {}

  __device__ void take(float (&s)[kScores], int begin) {
    const Problem& p = slab.problem;
    float factor[2];
    if (p.negative_scale || begin + kTileRows > p.last_key(at, 0) + 1)
      mask_scores(s, p, at, row, [&](int column) { return begin + column; });
    online_softmax(s, state, factor, p.scale);
  }

  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(state[half].sum);
      const bool empty = slab.problem.query_row(at, row + 8 * half) < 0 || state[half].largest == -INFINITY;
      if (threadIdx.x % 4 == 0) {
        slab.normalizers[int64_t{item} * kTileRows + row + 8 * half] =
            empty ? INFINITY : fmaf(state[half].largest, slab.problem.scale, log2f(sum));
      }
    }
  }
};

// Pass 2: each key's probabilities, summed over the rows of the tile. The product is transposed (K Q^T), so
// that the four threads of a quad hold all scores of a key.
struct PooledProbabilities {
  static constexpr bool kKeysAreRows = true;

  const AnchorSlab& slab;
  TileAddress at;
  float* pooled;
  int row, visible;
  float scale;
  const float2* normalizers;  // of columns 8 i and 8 i + 1 from the thread's first one on

  // shared: the warpgroup's room for normalizers.
  __device__ PooledProbabilities(const AnchorSlab& slab, const TileAddress& at, int item, int list, int row,
                                 int group, float* shared)
      : slab(slab), at(at), pooled(slab.pooled + list * slab.pitch), row(row), visible(slab.visible(at)) {
    scale = slab.problem.negative_scale ? -slab.problem.scale : slab.problem.scale;
    arch::named_barrier_sync(2 + group, 128);  // none reads those of the item before
    shared[threadIdx.x % 128] = slab.normalizers[int64_t{item} * kTileRows + threadIdx.x % 128];
    arch::named_barrier_sync(2 + group, 128);
    normalizers = reinterpret_cast<const float2*>(shared) + threadIdx.x % 4;
  }

  __device__ void take(float (&s)[kScores], int begin) {
    if (begin + kTileRows > slab.problem.last_key(at, 0) + 1) {
      add_tile<true>(s, begin);
    } else {
      add_tile<false>(s, begin);
    }
  }

  __device__ void finish() {}

 private:
  template <bool kHides>
  __device__ void add_tile(const float (&s)[kScores], int begin) {
    float sums[2][2] = {};  // of keys row and row + 8
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
      const float2 both = normalizers[4 * i];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float score = fmaf(s[4 * i + e], scale, e % 2 == 0 ? -both.x : -both.y);
        const float probability = fmaxf(arch::exp2_approx(score), 0.0f);  // 0 in a row that holds NaN
        const int column = 8 * i + threadIdx.x % 4 * 2 + e % 2, key = begin + row + e / 2 * 8;
        const bool hidden = kHides && key > slab.problem.last_key(at, column % kTokens);
        sums[e / 2][e % 2] += hidden ? 0.0f : probability;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = begin + row + 8 * half;
      const float sum = quad_sum(sums[half][0] + sums[half][1]);
      if (threadIdx.x % 4 != 0 || key >= visible) continue;
      pooled[key] = at.first_row == 0 ? sum : pooled[key] + sum;  // row blocks of a tile follow one another
    }
  }
};

template <class Element, int kDim, class Pass>
__device__ void consume_dense(const AnchorSlab& slab, AnchorShared<kDim>& shared) {
  const Problem& p = slab.problem;
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0),
            row = group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const int q_offset = Pass::kKeysAreRows ? 0 : group * 64 * 128, k_offset = group * 64 * 128 - q_offset;
  const uint64_t q = arch::k_major_descriptor(shared.q + q_offset);
  arch::RingPosition<kAnchorStages> turn;
  arch::RingPosition<1> q_turn;
  for (int round = 0, list; (list = list_of_round(round)) < slab.lists; ++round) {
    for (int block = 0; block < p.row_blocks; ++block) {
      const int item = (slab.first + list) * p.row_blocks + block;
      const TileAddress at = p.address(item);
      const int visible = slab.visible(at);
      Pass pass(slab, at, item, list, row, group, shared.normalizers[group]);
      arch::mbarrier_wait(&shared.q_full, q_turn.parity);
      q_turn.next();
      for (int begin = 0; begin < visible; begin += kTileRows) {
        float s[kScores];
        arch::mbarrier_wait(&shared.k_full[turn.stage], turn.parity);
        const uint64_t k = arch::k_major_descriptor(shared.k[turn.stage] + k_offset);
        if constexpr (Pass::kKeysAreRows) {
          issue_scores<Element, kDim>(s, k, q);
        } else {
          issue_scores<Element, kDim>(s, q, k);
        }
        arch::wgmma_wait<0>();
        arch::wgmma_hold(s);
        release(&shared.k_empty[turn.stage]);
        turn.next();
        pass.take(s, begin);
      }
      release(&shared.q_empty);
      pass.finish();
    }
  }
}

template <class Element, int kDim, class Pass>
__global__ void __launch_bounds__(kSweepThreads, kSweepBlocks)
    sweep_scores(const __grid_constant__ AnchorSlab slab) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<AnchorShared<kDim>*>(shared_memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kAnchorStages; ++i) {
      arch::mbarrier_init(&shared.k_full[i], 1);
      arch::mbarrier_init(&shared.k_empty[i], kConsumerWarps);
    }
    arch::mbarrier_init(&shared.q_full, 1);
    arch::mbarrier_init(&shared.q_empty, kConsumerWarps);
    arch::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 32 * kConsumerWarps) {
    consume_dense<Element, kDim, Pass>(slab, shared);
  } else {
    produce_dense(slab, shared);
  }
}

}  // namespace splash::gpu::kascade
