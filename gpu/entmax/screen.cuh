#pragma once
// One dense pass over the keys of a row tile, which finds the few pairs that may have p > 0: products of 64
// queries and kKeys keys in float16, in a warpgroup's registers (wgmma_f16.cuh), held against the rows'
// bounds less the products' error.
//
// What a score costs decides: at head_dim 64 the tensor cores need 256 cycles for 64 x 128 scores. So a
// lane's are looked at 16 at a time, 8 of each of its rows, two in an instruction. Only where one exceeds its
// row's threshold the 16 are put aside in shared memory, all in one go; later the warp takes what was put
// aside from there, a lane each, and lists what exceeds the thresholds.

#include "gpu/entmax/aside.cuh"

namespace splash::gpu::entmax {

// A lane's largest scores of some tiles, four of the even ones and four of the odd ones of each row, one a
// tile at most.
struct Samples {
  uint32_t largest[2][4] = {{kNoScores, kNoScores, kNoScores, kNoScores},
                            {kNoScores, kNoScores, kNoScores, kNoScores}};

  template <int kWords>
  __device__ __forceinline__ void take(const uint32_t (&acc)[kWords]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t rest = largest_of(acc, half);
#pragma unroll
      for (int word = kGroupWords; word < kWords; word += kGroupWords)
        rest = larger(rest, largest_of(acc + word, half));
#pragma unroll
      for (uint32_t& kept : largest[half]) {
        const uint32_t lesser = smaller(kept, rest);
        kept = larger(kept, rest);
        rest = lesser;
      }
    }
  }
};

// What a warp has in shared memory.
template <int kPlaces, int kSlots>
struct WarpRows {
  using Lists = RowLists<kPlaces>;
  using Aside = entmax::Aside<kSlots>;
  Aside aside;
  Lists lists;
};

template <int kKeys, class Rows>
class Screen {
  using Lists = typename Rows::Lists;
  using Aside = typename Rows::Aside;
  static_assert(Aside::kRoom >= 64, "a group of each lane beside what list() leaves");

 public:
  static constexpr int kWords = kKeys / 4;  // a lane's
  static constexpr int kGroups = kKeys / kGroupKeys;

  __device__ __forceinline__ Screen(Rows& rows, const Head& head)
      : lists_(rows.lists), aside_(rows.aside), head_(head) {}

  // tau of the samples: they are a set of keys like any other.
  __device__ __forceinline__ void bound_from(const Samples& samples) {
    const Entmax& entmax = head_.entmax;
    float scores[2][8], gain[2], bound[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      gain[half] = entmax.gain * lists_.unit[row_of(half)];
      const float margin = lists_.margin[row_of(half)];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = __half22float2(half2_of(samples.largest[half][i]));
        scores[half][2 * i] = at_least(pair.x, margin);
        scores[half][2 * i + 1] = at_least(pair.y, margin);
      }
      bound[half] = bound_of_largest(quad_max(fmaxf(scores[half][0], scores[half][1])), gain[half]);
    }
    entmax.visit([&](auto kind) {
#pragma unroll 1
      for (int step = 0; step < 6; ++step) {
        float sum[2] = {}, slope[2] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {  // two chains, so that neither waits
            const float u = gain[half] * (scores[half][i] - bound[half]), of_u = entmax.slope(kind, u);
            sum[half] = fmaf(fmaxf(u, 0.0f), of_u, sum[half]);
            slope[half] += of_u;
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
          bound[half] =
              newton(entmax.beta * gain[half], bound[half], quad_sum(sum[half]), quad_sum(slope[half]));
      }
    });
    __syncwarp();  // all have read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& of_row = lists_.bound[row_of(half)];
      if (threadIdx.x % 4 == 0 && !is_left(of_row)) of_row = fmaxf(of_row, bound[half]);
    }
    __syncwarp();
  }

  // How far the 16 largest samples of the quad's row lie apart in z, two tiles' so far; +inf where it sees
  // none.
  __device__ __forceinline__ float spread(const Samples& samples, int half) const {
    float largest = -INFINITY, least = INFINITY;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 pair = __half22float2(half2_of(samples.largest[half][i]));
      largest = fmaxf(largest, fmaxf(pair.x, pair.y));
      least =
          fminf(least, fminf(pair.x > -INFINITY ? pair.x : INFINITY, pair.y > -INFINITY ? pair.y : INFINITY));
    }
    largest = quad_max(largest);
    least = -quad_max(-least);
    return largest >= least ? head_.entmax.gain * lists_.unit[row_of(half)] * (largest - least) : INFINITY;
  }

  // How many of the 32 samples of the quad's row lie above its bound.
  __device__ __forceinline__ int above_bound(const Samples& samples, int half) const {
    const int row = row_of(half);
    int above = 0;
#pragma unroll
    for (const uint32_t pair : samples.largest[half]) {
      const float2 scores = __half22float2(half2_of(pair));
      above += scores.x > lists_.bound[row] ? 1 : 0;
      above += scores.y > lists_.bound[row] ? 1 : 0;
    }
    return quad_sum(above);
  }

  // Before keys are looked at: with the bounds as they are.
  __device__ __forceinline__ void aim() {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      threshold_[half] = threshold_of(lists_.bound[row_of(half)], lists_.margin[row_of(half)]);
  }

  // Puts the groups aside of which a score exceeds its row's threshold. False where there was too little room
  // for all: then the tile must be looked at again.
  __device__ __forceinline__ bool look(const uint32_t (&acc)[kWords], int first_key, int lane) {
    unsigned lanes[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      lanes[group] = __ballot_sync(kWarp, exceeds(acc + kGroupWords * group));
    const unsigned mine = 1u << lane;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (lanes[group] == 0) continue;
      const int slot = waiting_ + __popc(lanes[group] & (mine - 1));
      if ((lanes[group] & mine) != 0 && slot < Aside::kRoom)
        aside_.put(slot, acc + kGroupWords * group, first_key + lane + kGroupKeys * group);
      waiting_ += __popc(lanes[group]);
    }
    const bool fits = waiting_ <= Aside::kRoom;
    waiting_ = min(waiting_, Aside::kRoom);
    return fits;
  }

  __device__ __forceinline__ int waiting() const {
    return waiting_;
  }

  // Forgets the pairs of a tile that is looked at again.
  __device__ __forceinline__ void forget(int first_key, int end_key) {
    drop_screened(lists_, first_key, end_key);
  }

  // Lists the groups of such a tile, one group of each lane at a time.
  __device__ __forceinline__ void look_again(const uint32_t (&acc)[kWords], int origin) {
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      uint32_t words[kGroupWords];
#pragma unroll
      for (int i = 0; i < kGroupWords; ++i) {
        words[i] = acc[i];
#pragma unroll
        for (int other = 1; other < kGroups; ++other)
          words[i] = group == other ? acc[kGroupWords * other + i] : words[i];
      }
      if (waiting_ > Aside::kRoom - 32) list(true);
      const unsigned lanes = __ballot_sync(kWarp, exceeds(words)), mine = 1u << (threadIdx.x % 32);
      if ((lanes & mine) != 0)
        aside_.put(waiting_ + __popc(lanes & (mine - 1)), words, origin + kGroupKeys * group);
      waiting_ += __popc(lanes);
    }
  }

  // Lists what was put aside: all of it, or as much as is quickly done.
  __device__ __forceinline__ void list(bool quickly) {
    waiting_ = list_aside(lists_, aside_, head_, waiting_, quickly);
    aim();
  }

  __device__ __forceinline__ void list_and_tighten() {
    waiting_ = list_aside(lists_, aside_, head_, waiting_, false);
    tighten(lists_, head_);
    aim();
  }

  // All rows are left to the dense path.
  __device__ __forceinline__ void close_all() {
    __syncwarp();  // all have read
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kWarpRows) close_row(lists_, head_, lane, kBroad);
    __syncwarp();
    aim();
  }

  // Whether no row takes pairs any more.
  __device__ __forceinline__ bool closed() const {
    return __all_sync(kWarp, is_left(fminf(lists_.bound[row_of(0)], lists_.bound[row_of(1)])));
  }

 private:
  __device__ __forceinline__ bool exceeds(const uint32_t* words) const {
    return (exceeding(threshold_[0], largest_of(words, 0)) |
            exceeding(threshold_[1], largest_of(words, 1))) != 0;
  }

  Lists& lists_;
  Aside& aside_;
  const Head& head_;
  uint32_t threshold_[2] = {};
  int waiting_ = 0;
};

}  // namespace splash::gpu::entmax
