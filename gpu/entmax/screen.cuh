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
  float error = 0;  // the largest of their keys

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
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float gain = entmax.gain * lists_.unit[row_of(half)];
      const float norm = lists_.norm[row_of(half)];
      float scores[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = __half22float2(half2_of(samples.largest[half][i]));
        scores[2 * i] = at_least(pair.x, norm, samples.error);
        scores[2 * i + 1] = at_least(pair.y, norm, samples.error);
      }
      float bound = bound_of_largest(quad_max(fmaxf(scores[0], scores[1])), gain);
      entmax.visit([&](auto kind) {
#pragma unroll 1
        for (int step = 0; step < 6; ++step) {
          float sum = 0, slope = 0;
#pragma unroll
          for (const float score : scores) {
            const float u = gain * (score - bound), of_u = entmax.slope(kind, u);
            sum = fmaf(fmaxf(u, 0.0f), of_u, sum);
            slope += of_u;
          }
          bound = newton(entmax.beta * gain, bound, quad_sum(sum), quad_sum(slope));
        }
      });
      __syncwarp();  // all have read
      float& of_row = lists_.bound[row_of(half)];
      if (threadIdx.x % 4 == 0 && !is_left(of_row)) of_row = fmaxf(of_row, bound);
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

  // Before keys whose products are off by up to this error are looked at.
  __device__ __forceinline__ void aim(float error) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(half);
      threshold_[half] = threshold_of(lowered(lists_.bound[row]), lists_.norm[row], error);
    }
  }

  // Of each group of keys the lanes that hold a score above its row's threshold.
  struct Above {
    unsigned lanes[kGroups];
  };
  __device__ __forceinline__ Above find(const uint32_t (&acc)[kWords]) const {
    Above above;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      above.lanes[group] = __ballot_sync(kWarp, exceeds(acc + kGroupWords * group));
    return above;
  }

  // Puts those groups aside. False where there was too little room for all: then the tile must be looked at
  // again. No branch a group: one lane or another has a score above in most.
  __device__ __forceinline__ bool put_aside(const uint32_t (&acc)[kWords], const Above& above, int first_key,
                                            int lane) {
    unsigned any = 0;
#pragma unroll
    for (const unsigned lanes : above.lanes) any |= lanes;
    if (any == 0) return true;
    const unsigned mine = 1u << lane;
    int slot[kGroups], end = waiting_;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      slot[group] = end + __popc(above.lanes[group] & (mine - 1));
      end += __popc(above.lanes[group]);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if ((above.lanes[group] & mine) != 0 && slot[group] < Aside::kRoom)
        aside_.put(slot[group], acc + kGroupWords * group, first_key + lane + kGroupKeys * group);
    }
    waiting_ = min(end, Aside::kRoom);
    return end <= Aside::kRoom;
  }

  __device__ __forceinline__ int waiting() const {
    return waiting_;
  }

  // Forgets the pairs of a tile that is looked at again.
  __device__ __forceinline__ void forget(int first_key, int end_key) {
    drop_screened(lists_, head_.errors, first_key, end_key);
  }

  // Lists the groups of such a tile, one group of each lane at a time.
  __device__ __forceinline__ void look_again(const uint32_t (&acc)[kWords], int origin, float error) {
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
      if (waiting_ > Aside::kRoom - 32) list(false);
      aim(error);
      const unsigned lanes = __ballot_sync(kWarp, exceeds(words)), mine = 1u << (threadIdx.x % 32);
      if ((lanes & mine) != 0)
        aside_.put(waiting_ + __popc(lanes & (mine - 1)), words, origin + kGroupKeys * group);
      waiting_ += __popc(lanes);
    }
  }

  // Lists what was put aside: all of it, and raises the bounds; or as much as is quickly done.
  __device__ __forceinline__ void list(bool all) {
    waiting_ = list_aside(lists_, aside_, head_, waiting_, all);
  }

  // All rows are left to the dense path.
  __device__ __forceinline__ void close_all() {
    __syncwarp();  // all have read
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kWarpRows) close_row(lists_, head_, lane, kBroad);
    __syncwarp();
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
