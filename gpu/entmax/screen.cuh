#pragma once
// One dense pass over the keys of a row tile, which finds the few pairs that may have p > 0: the products of
// 64 queries and kKeys keys in a warpgroup's registers (acc[4 j + 2 half + e] is key 8 j + 2 (lane % 4) + e
// of row lane / 4 + 8 half of its warp), held against the rows' bounds.
//
// What a score costs decides: at head_dim 64 the tensor cores need 256 cycles for a tile of 64 x 128, and of
// what is not a float32 sum or product a warp may execute one instruction every second cycle. So a lane's
// scores are looked at 16 at a time, 8 of each of its rows: 3-input integer maxima (half an instruction a
// score) tell whether one exceeds its row's bound, for floats are in the order of their bits if they are
// positive, and NaN is above all. Only then are the 16 put aside in shared memory, all in one go; later the
// warp takes what was put aside from there, a lane each, and lists what exceeds the bounds.

#include "gpu/entmax/row_lists.cuh"

namespace splash::gpu::entmax {

// Integers in the order of the floats that have these bits.
__device__ __forceinline__ int ordered(int bits) {
  return bits ^ static_cast<int>(static_cast<unsigned>(bits >> 31) >> 1);
}
__device__ __forceinline__ float float_of_ordered(int bits) {
  return __int_as_float(ordered(bits));
}

constexpr int kGroup = 16;  // scores a lane looks at together

// The largest of a group's 8 scores of one row, as ordered integers; kPositive: right where one is positive.
template <bool kPositive>
__device__ __forceinline__ int largest_of(const float* s) {
  const auto bits = [&](int i) {
    const int b = __float_as_int(s[4 * (i / 2) + i % 2]);
    return kPositive ? b : ordered(b);
  };
  const int a = __vimax3_s32(bits(0), bits(1), bits(2)), b = __vimax3_s32(bits(3), bits(4), bits(5));
  return __vimax3_s32(max(a, b), bits(6), bits(7));
}

constexpr int kInfinityBits = 0x7F800000, kNoScore = static_cast<int>(0x807FFFFF);  // -inf, ordered

// A lane's largest scores of some tiles, four of each row, one a tile at most.
struct Samples {
  int largest[2][4] = {{kNoScore, kNoScore, kNoScore, kNoScore}, {kNoScore, kNoScore, kNoScore, kNoScore}};

  template <int kScores>
  __device__ __forceinline__ void take(const float (&acc)[kScores]) {
    int top[2];
    find<true>(acc, top);
    if (__any_sync(kWarp, min(top[0], top[1]) < 0)) find<false>(acc, top);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int bits = top[half];
#pragma unroll
      for (int& kept : largest[half]) {
        const int lesser = min(kept, bits);
        kept = max(kept, bits);
        bits = lesser;
      }
    }
  }

 private:
  template <bool kPositive, int kScores>
  static __device__ __forceinline__ void find(const float (&acc)[kScores], int (&top)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = largest_of<kPositive>(acc + 2 * half);
#pragma unroll
      for (int group = 1; group < kScores / kGroup; ++group)
        top[half] = max(top[half], largest_of<kPositive>(acc + kGroup * group + 2 * half));
    }
  }
};

// What a warp has put aside: groups of scores of which one at least exceeded its row's bound.
template <int kSlots>
struct Aside {
  static constexpr int kRoom = kSlots;
  struct alignas(16) Group {
    float scores[kGroup];
    int origin;     // the first of the 32 keys that the warp looked at, plus the lane
    int unused[3];  // so that lanes read their groups from different banks
  };
  Group groups[kSlots];
};

// Rows among whose scores are NaN or +inf: this lane saw some in the first or second row of a quad.
template <class Lists>
__device__ __forceinline__ void close_poisoned(Lists& lists, int quad, bool first, bool second) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();  // all have read
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Bit r: row r of this half.
    const unsigned rows = __reduce_or_sync(kWarp, (half == 0 ? first : second) ? 1u << quad : 0);
    if (lane < 8 && rows >> lane & 1 && lists.bound[lane + 8 * half] < kBroad) {
      lists.bound[lane + 8 * half] = poisoned();
      lists.count[lane + 8 * half] = 0;
    }
  }
  __syncwarp();
}

// The row is left to others, who may start from its bound. mark: kCrowded or kBroad.
template <class Lists>
__device__ __forceinline__ void close_row(Lists& lists, float* bounds, int row, float mark) {
  const float bound = lists.bound[row];
  if (bound < kBroad) {
    bounds[lists.query[row]] = bound;
    lists.count[row] = 0;
  }
  if (bound < kBroad || (is_left(bound) && lists.query[row] >= 0)) lists.bound[row] = mark;
}

// Raises the bounds, drops what they rule out, and closes rows that have hardly any room left even so. Where
// half of the rows are crowded, so will be the others: all are closed.
template <class Lists>
__device__ __forceinline__ void tighten(Lists& lists, const Entmax& entmax, float* bounds) {
  raise_bounds(lists, entmax, 3);
  drop_pairs(lists);
  const int row = static_cast<int>(threadIdx.x) % 32;
  const bool is_row = row < kWarpRows;
  if (is_row && lists.count[row] > Lists::kRoom - Lists::kRoom / 8) close_row(lists, bounds, row, kCrowded);
  const bool crowded = is_row && lists.query[row] >= 0 && lists.bound[row] == kCrowded;
  if (__popc(__ballot_sync(kWarp, crowded)) >= kWarpRows / 2 && is_row) close_row(lists, bounds, row, kBroad);
  __syncwarp();
}

// Lists the pairs of the groups from `first` to below `waiting`, a lane a group, in the same order every
// time.
template <class Lists, class Aside>
__device__ __forceinline__ void list_groups(Lists& lists, Aside& put, const Entmax& entmax, float* bounds,
                                            int first, int waiting) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto& group = put.groups[min(first + lane, Aside::kRoom - 1)];
  const bool mine = first + lane < waiting;
  const int origin = mine ? group.origin : 0, quad = origin % 32 / 4;
  unsigned above = 0;  // bit 15 - i: score i
  int largest[2] = {kNoScore, kNoScore};
  const float bound[2] = {lists.bound[quad], lists.bound[quad + 8]};
#pragma unroll
  for (int i = 0; i < kGroup; i += 4) {
    const float4 s = *reinterpret_cast<const float4*>(group.scores + i);
    const float four[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) above = __funnelshift_l(__float_as_uint(bound[j / 2] - four[j]), above, 1);
    largest[0] = __vimax3_s32(largest[0], __float_as_int(s.x), __float_as_int(s.y));
    largest[1] = __vimax3_s32(largest[1], __float_as_int(s.z), __float_as_int(s.w));
  }
  if (!mine) above = 0;
  const bool poison[2] = {largest[0] >= kInfinityBits, largest[1] >= kInfinityBits};
  if (__any_sync(kWarp, mine && (poison[0] || poison[1]))) [[unlikely]] {
    close_poisoned(lists, quad, mine && poison[0], mine && poison[1]);
    if (isnan(lists.bound[quad])) above &= 0x3333;
    if (isnan(lists.bound[quad + 8])) above &= 0xCCCC;
  }
  while (__any_sync(kWarp, above != 0)) {
    const int i = __clz(static_cast<int>(above << 16)) % kGroup, row = quad + 8 * (i / 2 % 2);
    const float score = group.scores[i];
    const bool wanted = above != 0 && score > lists.bound[row];
    const unsigned peers = __match_any_sync(kWarp, wanted ? row : kWarpRows + lane);
    const int slot = wanted ? lists.count[row] + __popc(peers & ((1u << lane) - 1)) : 0;
    const bool fits = slot < Lists::kRoom;
    __syncwarp();
    if (wanted && fits) {
      lists.scores[row][slot] = score;
      lists.keys[row][slot] = (origin & ~31) + 8 * (i / 4) + 2 * (origin % 4) + i % 2;
      if (peers >> lane == 1 || slot == Lists::kRoom - 1) lists.count[row] = slot + 1;
    }
    if (fits) above &= ~(0x8000u >> i);
    __syncwarp();
    if (__any_sync(kWarp, !fits)) [[unlikely]]
      tighten(lists, entmax, bounds);
  }
}

// Lists what was put aside; raise: and raises the bounds by it. Not inlined: it is called from several
// places, none of them often.
template <class Lists, class Aside>
__device__ __noinline__ void list_aside(Lists& lists, Aside& put, const Entmax& entmax, float* bounds,
                                        int waiting, bool raise) {
  __syncwarp();
#pragma unroll 1
  for (int first = 0; first < waiting; first += 32) list_groups(lists, put, entmax, bounds, first, waiting);
  if (raise) tighten(lists, entmax, bounds);
}

template <int kKeys, class Lists, class Aside>
class Screen {
  static_assert(Aside::kRoom >= 32, "a group of each lane");

 public:
  static constexpr int kScores = kKeys / 2;  // a lane's
  static constexpr int kGroups = kScores / kGroup;

  // bounds: of the head's rows; where crowded ones leave theirs.
  __device__ __forceinline__ Screen(Lists& lists, Aside& aside, const Entmax& entmax, float* const& bounds)
      : lists_(lists), aside_(aside), entmax_(entmax), bounds_(bounds), lane_(threadIdx.x % 32) {
    asm volatile("" : "+r"(lane_));  // kept in a register: it is read for each group put aside
    bounds_moved();
  }

  // tau of the samples: they are a set of keys like any other.
  __device__ __forceinline__ void bound_from(const Samples& samples) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float scores[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[i] = float_of_ordered(samples.largest[half][i]);
      const bool poison = quad_any(samples.largest[half][0] >= kInfinityBits);
      float bound = bound_of_largest(quad_max(scores[0]), entmax_);
      entmax_.visit([&](auto kind) {
#pragma unroll 1
        for (int step = 0; step < 6; ++step) {
          float sum = 0, slope = 0;
#pragma unroll
          for (const float score : scores) {
            const float u = entmax_.gain * (score - bound), of_u = entmax_.slope(kind, u);
            sum = fmaf(fmaxf(u, 0.0f), of_u, sum);
            slope += of_u;
          }
          bound = newton(entmax_, bound, quad_sum(sum), quad_sum(slope));
        }
      });
      __syncwarp();  // all have read
      float& of_row = lists_.bound[row_of(half)];
      if (threadIdx.x % 4 == 0 && of_row < kBroad) of_row = poison ? poisoned() : fmaxf(of_row, bound);
    }
    __syncwarp();
    bounds_moved();
  }

  // Whether the samples of most rows lie so close together that supports must be broad: a row's 16 largest
  // within 0.1 in z. (Were they all, each would have p of some 1/16.)
  __device__ __forceinline__ bool broad(const Samples& samples) const {
    int rows = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = quad_max(float_of_ordered(samples.largest[half][0]));
      const float least = -quad_max(-float_of_ordered(samples.largest[half][3]));
      const bool close = entmax_.gain * (largest - least) < 0.1f || lists_.query[row_of(half)] < 0;
      rows += __popc(__ballot_sync(kWarp, close && lane_ % 4 == 0));
    }
    return rows >= kWarpRows / 2;
  }

  // Thresholds follow the bounds in shared memory.
  __device__ __forceinline__ void bounds_moved() {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      threshold_[half] = ordered(__float_as_int(lists_.bound[row_of(half)]));
    const int lowest = min(threshold_[0], threshold_[1]);
    positive_ = __all_sync(kWarp, lowest >= 0);
    closed_ = __all_sync(kWarp, lowest >= __float_as_int(kBroad));
  }

  // Puts aside the groups that hold a score above its row's bound. Counts on where there is no room.
  __device__ __forceinline__ void look(const float (&acc)[kScores], int first_key) {
    if (positive_) [[likely]] {
      look_as<true>(acc, first_key);
    } else {
      look_as<false>(acc, first_key);
    }
  }

  // After a tile. False where not all of its groups found room: then it must be looked at again.
  __device__ __forceinline__ bool settle() {
    const bool fits = waiting_ <= Aside::kRoom;
    waiting_ = min(waiting_, Aside::kRoom);
    return fits;
  }

  __device__ __forceinline__ int waiting() const {
    return waiting_;
  }

  // Forgets the pairs of a tile that is looked at again.
  __device__ __forceinline__ void forget(int first_key, int end_key) {
    drop_pairs(lists_, first_key, end_key);
  }

  // Puts aside and lists the groups of a part of such a tile, one group of each lane at a time.
  __device__ __forceinline__ void look_again(const float (&acc)[kScores], int first_key) {
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      float s[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        s[i] = acc[i];
#pragma unroll
        for (int other = 1; other < kGroups; ++other) s[i] = group == other ? acc[kGroup * other + i] : s[i];
      }
      list(false);
      put_aside(s, first_key + 2 * kGroup * group, exceeds<false>(s));
    }
  }

  // Lists what was put aside; raise: and raises the bounds by it.
  __device__ __forceinline__ void list(bool raise) {
    list_aside(lists_, aside_, entmax_, bounds_, waiting_, raise);
    waiting_ = 0;
    bounds_moved();
  }

  // All rows are left to the dense path.
  __device__ __forceinline__ void close_all() {
    __syncwarp();  // all have read
    if (lane_ < kWarpRows) close_row(lists_, bounds_, lane_, kBroad);
    __syncwarp();
    bounds_moved();
  }

  // Whether no row takes pairs any more.
  __device__ __forceinline__ bool closed() const {
    return closed_;
  }

 private:
  template <bool kPositive>
  __device__ __forceinline__ bool exceeds(const float* s) const {
    const bool first = largest_of<kPositive>(s) > threshold_[0];
    const bool second = largest_of<kPositive>(s + 2) > threshold_[1];
    return first | second;
  }

  template <bool kPositive>
  __device__ __forceinline__ void look_as(const float (&acc)[kScores], int first_key) {
    bool above[kGroups], any = false;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      above[group] = exceeds<kPositive>(acc + kGroup * group);
      any |= above[group];
    }
    if (kGroups > 1 && !__any_sync(kWarp, any)) return;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      put_aside(acc + kGroup * group, first_key + 2 * kGroup * group, above[group]);
  }

  __device__ __forceinline__ void put_aside(const float* s, int first_key, bool mine) {
    const unsigned lanes = __ballot_sync(kWarp, mine);
    if (lanes == 0) return;
    const int slot = waiting_ + __popc(lanes & ((1u << lane_) - 1));
    if (mine && slot < Aside::kRoom) {
      auto& group = aside_.groups[slot];
#pragma unroll
      for (int i = 0; i < kGroup; i += 4)
        *reinterpret_cast<float4*>(group.scores + i) = make_float4(s[i], s[i + 1], s[i + 2], s[i + 3]);
      group.origin = first_key + static_cast<int>(lane_);
    }
    waiting_ += __popc(lanes);
  }

  Lists& lists_;
  Aside& aside_;
  const Entmax& entmax_;
  float* const& bounds_;
  unsigned lane_;
  int threshold_[2] = {}, waiting_ = 0;
  bool positive_ = false, closed_ = false;
};

}  // namespace splash::gpu::entmax
