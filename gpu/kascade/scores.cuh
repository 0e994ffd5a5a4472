#pragma once
// The anchor's two passes over all visible scores (sm_90a). A block takes two neighbouring lists of a key
// head, which see the same keys but for the last 32: one thread issues the TMA loads of the keys for both,
// and two warpgroups a list multiply 64 rows each, then work on their scores. The exponentials bound both
// passes up to head_dim 128: an SM computes 16 per cycle, so a tile of 128 x 128 takes 1024 cycles, as many
// as its products take. Some warpgroups' products overlap others' exponentials. Blocks take pairs of lists
// from a queue. Beside two tiles of queries of head_dim 256 there is no room for two of keys: there a stage
// of the ring holds 64 columns of a tile of keys, and products are added up stage by stage.

#include "gpu/kascade/consumer.cuh"

namespace splash::gpu::kascade {

constexpr int kSides = 2, kScores = kTileRows / 2;  // lists of a pair; scores of a thread
constexpr int kSweepWarps = kSides * kConsumerWarps;
constexpr int kSweepThreads = 32 * (kSweepWarps + 4);  // the last warpgroup loads

// Columns of a tile of keys that a stage holds, and stages.
template <int kDim>
constexpr int kStageDim = kDim > 128 ? 64 : kDim;
template <int kDim>
constexpr int kAnchorStages = kDim > 128 ? 6 : 4;

template <int kDim>
struct AnchorShared {
  alignas(1024) unsigned char q[kSides][kTileBytes<kDim>],
      k[kAnchorStages<kDim>][kTileBytes<kStageDim<kDim>>];
  uint64_t k_full[kAnchorStages<kDim>], k_empty[kAnchorStages<kDim>], q_full, q_empty;
  alignas(8) float normalizers[kSweepWarps / 4][kTileRows];  // of the item, for each warpgroup
  int item;  // of the slab, to work on (-1: none): pair * row_blocks + row block; arrives with q
};

// What one launch works on: lists [first, first + lists) in the order of Problem::address.
struct AnchorSlab {
  CUtensorMap queries, keys;  // tiles of 32 and 128 rows, 64 columns
  Problem problem;
  int first = 0, lists = 0;
  int64_t pitch = 0;                         // floats per list in `pooled`
  float* normalizers = nullptr;              // [list * row_blocks, 128]: log2 of the row's sum of 2^score
  const float* given_normalizers = nullptr;  // [batch, q_heads, q_len], natural logarithms, in their place
  float* pooled = nullptr;                   // [lists, pitch]
  int* queue = nullptr;                      // the next pair that no block has taken

  // Number of keys that the tile's last query sees; no other query of the tile sees a key beyond them.
  __device__ int visible(const TileAddress& at) const {
    return max(0, min(problem.kv_len, problem.last_key(at) + 1) - problem.missing(at));
  }

  // Of a list of the slab.
  __device__ TileAddress address_of(int list) const { return problem.address(item_of(list, 0)); }
  __device__ int visible_of(int list) const { return visible(address_of(list)); }

  // Pairs of all heads are counted through; a pair at an end of the slab may have one list here.
  __host__ __device__ int pairs_of_head() const { return (problem.tiles + kSides - 1) / kSides; }
  __host__ __device__ int first_pair() const { return pair_of(first); }
  __host__ __device__ int pairs() const { return pair_of(first + lists - 1) - first_pair() + 1; }

  // The list of one side of a pair of the slab, from `first` on; -1 where there is none.
  __device__ int list_of(int pair, int side) const {
    pair += first_pair();
    const int of_head = pair % pairs_of_head() * kSides + side;
    const int list = pair / pairs_of_head() * problem.tiles + of_head - first;
    return of_head < problem.tiles && list >= 0 && list < lists ? list : -1;
  }

  // Of a list of the slab.
  __device__ int item_of(int list, int row_block) const {
    return (first + list) * problem.row_blocks + row_block;
  }

  // Number of keys that some list of the pair sees.
  __device__ int visible_to_pair(int pair) const {
    int most = 0;
    for (int side = 0; side < kSides; ++side) {
      if (const int list = list_of(pair, side); list >= 0) most = max(most, visible_of(list));
    }
    return most;
  }

 private:
  __host__ __device__ int pair_of(int list) const {
    return list / problem.tiles * pairs_of_head() + list % problem.tiles / kSides;
  }
};

// Stages of a tile of keys. Columns past head_dim have none.
template <int kDim>
__device__ int stages_of_tile(const Problem& p) {
  return kDim == kStageDim<kDim> ? 1 : (p.head_dim + kStageDim<kDim> - 1) / kStageDim<kDim>;
}

// Loads the queries of a tile's row block. Rows past the end of a head arrive as zeros; loads for heads that
// the group does not have start past that end on purpose.
template <int kDim>
__device__ void load_queries(const AnchorSlab& slab, const TileAddress& at, unsigned char* to,
                             uint64_t* full) {
  const Problem& p = slab.problem;
  for (int i = 0; i < kTileRows / kTokens; ++i) {
    const int head = at.first_row / kTokens + i, token = head < p.group ? at.tile * kTokens : p.q_len;
    for (int panel = 0; panel < kDim / 64; ++panel) {
      arch::tensor_load(to + panel * kPanelBytes + i * kTokens * 128, &slab.queries, full, panel * 64, token,
                        static_cast<int>(at.kv_head) * p.group + min(head, p.group - 1));
    }
  }
}

// One thread is enough, because TMA does the copying. The longest pairs of a head come first, so that all
// blocks end together.
template <int kDim>
__device__ void produce_dense(const AnchorSlab& slab, AnchorShared<kDim>& shared) {
  if (threadIdx.x % 128 != 0) return;
  const Problem& p = slab.problem;
  arch::RingPosition<kAnchorStages<kDim>> turn;
  arch::RingPosition<1> q_turn;
  const int stages = stages_of_tile<kDim>(p);
  for (int pair = blockIdx.x, next; pair < slab.pairs(); pair = next) {
    next = atomicAdd(slab.queue, 1);  // long before it is needed
    const int visible = slab.visible_to_pair(pair);
    for (int block = 0; block < p.row_blocks; ++block) {
      const int lists[kSides] = {slab.list_of(pair, 0), slab.list_of(pair, 1)};
      arch::mbarrier_wait(&shared.q_empty, q_turn.parity ^ 1);
      shared.item = pair * p.row_blocks + block;
      arch::mbarrier_arrive_expect(&shared.q_full, ((lists[0] >= 0) + (lists[1] >= 0)) * kTileBytes<kDim>);
      int kv_head = 0;
      for (int side = 0; side < kSides; ++side) {
        if (lists[side] < 0) continue;
        const TileAddress at = p.address(slab.item_of(lists[side], block));
        kv_head = static_cast<int>(at.kv_head);
        load_queries<kDim>(slab, at, shared.q[side], &shared.q_full);
      }
      q_turn.next();
      for (int begin = 0; begin < visible; begin += kTileRows) {
        for (int stage = 0; stage < stages; ++stage) {
          uint64_t* const full = &shared.k_full[turn.stage];
          arch::mbarrier_wait(&shared.k_empty[turn.stage], turn.parity ^ 1);
          arch::mbarrier_arrive_expect(full, kTileBytes<kStageDim<kDim>>);
          for (int panel = 0; panel < kStageDim<kDim> / 64; ++panel) {
            arch::tensor_load(shared.k[turn.stage] + panel * kPanelBytes, &slab.keys, full,
                              stage * kStageDim<kDim> + panel * 64, begin, kv_head);
          }
          turn.next();
        }
      }
    }
  }
  arch::mbarrier_wait(&shared.q_empty, q_turn.parity ^ 1);
  shared.item = -1;
  arch::mbarrier_arrive(&shared.q_full);
}

// Pass 1: each row's normaliser. It is +inf for rows that see no key or do not exist, so that their
// probabilities become 0 in pass 2. The four threads of a quad sum their own columns until the row ends.
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
    if (p.negative_scale || begin + kTileRows > p.last_key(at, 0) + 1)
      mask_scores(s, p, at, row, [&](int column) { return begin + column; });
    float factor[2];
    online_softmax(s, state, factor, p.scale, [](float largest) { return largest; });
  }

  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float shift;
      const float factor = state[half].raise(quad_max_or_nan(state[half].largest), slab.problem.scale, shift);
      const float sum = quad_sum(state[half].sum * factor);
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
    shared[threadIdx.x % 128] = normalizer(item, threadIdx.x % 128);
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
  __device__ float normalizer(int item, int of_row) const {
    if (slab.given_normalizers == nullptr) return slab.normalizers[int64_t{item} * kTileRows + of_row];
    const int64_t query = slab.problem.query_row(at, of_row);
    const float given = query < 0 ? -INFINITY : slab.given_normalizers[query];
    return given == -INFINITY ? INFINITY : given * std::numbers::log2e_v<float>;
  }

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
    // Of a quad two threads sum one key, two the other.
    const bool other = threadIdx.x % 2 == 1;
    const float sum_0 = sums[0][0] + sums[0][1], sum_1 = sums[1][0] + sums[1][1];
    float sum = (other ? sum_1 : sum_0) + __shfl_xor_sync(arch::kAllLanes, other ? sum_0 : sum_1, 1);
    sum += __shfl_xor_sync(arch::kAllLanes, sum, 2);
    const int key = begin + row + (other ? 8 : 0);
    if (threadIdx.x % 4 >= 2 || key >= visible) return;
    pooled[key] = at.first_row == 0 ? sum : pooled[key] + sum;  // row blocks of a tile follow one another
  }
};

template <class Element, int kDim, class Pass>
__device__ void consume_dense(const AnchorSlab& slab, AnchorShared<kDim>& shared) {
  const Problem& p = slab.problem;
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0), side = group / 2,
            first_row = group % 2 * 64, row = first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const int q_offset = Pass::kKeysAreRows ? 0 : first_row * 128, k_offset = first_row * 128 - q_offset;
  const uint64_t q = arch::uniform(arch::k_major_descriptor(shared.q[side] + q_offset));
  arch::RingPosition<kAnchorStages<kDim>> turn;
  arch::RingPosition<1> q_turn;
  const int stages = stages_of_tile<kDim>(p);
  while (true) {
    arch::mbarrier_wait(&shared.q_full, q_turn.parity);
    q_turn.next();
    if (shared.item < 0) break;
    const int pair = shared.item / p.row_blocks, in_slab = slab.list_of(pair, side), list = max(in_slab, 0),
              item = slab.item_of(list, shared.item % p.row_blocks);
    const TileAddress at = p.address(item);
    const int visible = in_slab < 0 ? 0 : slab.visible(at), visible_to_pair = slab.visible_to_pair(pair);
    Pass pass(slab, at, item, list, row, group, shared.normalizers[group]);
    for (int begin = 0; begin < visible_to_pair; begin += kTileRows) {
      arch::mbarrier_wait(&shared.k_full[turn.stage], turn.parity);
      if (begin < visible) {
        float s[kScores];
        for (int stage = 0; stage < stages; ++stage) {
          const int before = turn.stage;
          if (stage > 0) {
            turn.next();
            arch::mbarrier_wait(&shared.k_full[turn.stage], turn.parity);
          }
          const uint64_t k = arch::uniform(arch::k_major_descriptor(shared.k[turn.stage] + k_offset)),
                         of_q = arch::advance(q, stage * kTileBytes<kStageDim<kDim>>);
          if constexpr (Pass::kKeysAreRows) {
            issue_scores<Element, kStageDim<kDim>>(s, k, of_q, stage > 0);
          } else {
            issue_scores<Element, kStageDim<kDim>>(s, of_q, k, stage > 0);
          }
          if (stage > 0) {  // the products before have read theirs
            arch::wgmma_wait<1>();
            release(&shared.k_empty[before]);
          }
        }
        arch::wgmma_wait<0>();
        arch::wgmma_hold(s);
        release(&shared.k_empty[turn.stage]);
        pass.take(s, begin);
      } else {
        release(&shared.k_empty[turn.stage]);
        for (int stage = 1; stage < stages; ++stage) {
          turn.next();
          arch::mbarrier_wait(&shared.k_full[turn.stage], turn.parity);
          release(&shared.k_empty[turn.stage]);
        }
      }
      turn.next();
    }
    release(&shared.q_empty);
    if (in_slab >= 0) pass.finish();
  }
}

template <class Element, int kDim, class Pass>
__global__ void __launch_bounds__(kSweepThreads, 1) sweep_scores(const __grid_constant__ AnchorSlab slab) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<AnchorShared<kDim>*>(shared_memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kAnchorStages<kDim>; ++i) {
      arch::mbarrier_init(&shared.k_full[i], 1);
      arch::mbarrier_init(&shared.k_empty[i], kSweepWarps);
    }
    arch::mbarrier_init(&shared.q_full, 1);
    arch::mbarrier_init(&shared.q_empty, kSweepWarps);
    arch::mbarrier_init_fence();
  }
  __syncthreads();
  entmax::wait_for_kernels_before();
  if (threadIdx.x < 32 * kSweepWarps) {
    arch::take_registers<112>();
    consume_dense<Element, kDim, Pass>(slab, shared);
  } else {
    arch::give_registers_back<24>();
    produce_dense(slab, shared);
  }
}

}  // namespace splash::gpu::kascade
