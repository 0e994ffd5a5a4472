#pragma once
// A unit (problem.h): which rows and keys it has, and exact scores of 16 keys at a time.

#include "gpu/arch/maximum.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/arch/reduce.cuh"
#include "gpu/decode/elements.cuh"
#include "gpu/decode/problem.h"
#include "gpu/entmax/entmax.h"
#include "gpu/entmax/math/vectors.cuh"

namespace splash::gpu::decode {

using entmax::Entmax;

struct Unit {
  int index, sequence, kv_head, first_row, rows;
  const int32_t* pages;  // the sequence's, in the table or in shared memory

  __device__ Unit(const Step& p, int unit) : index(unit) {
    const int tile = unit % p.row_tiles, pair = unit / p.row_tiles;
    sequence = pair / p.cache.kv_heads;
    kv_head = pair % p.cache.kv_heads;
    first_row = tile * kRows;
    rows = min(kRows, p.rows - first_row);
    pages = p.table.pages + sequence * int64_t{p.table.width};
  }

  __device__ int query(const Step& p, int row) const { return (first_row + row) % p.q_len; }
  __device__ int head(const Step& p, int row) const {
    return kv_head * p.group + (first_row + row) / p.q_len;
  }
  template <class T>
  __device__ T* row_of(const Step& p, const RowTensor& tensor, int row) const {
    return static_cast<T*>(tensor.data) + sequence * tensor.batch_stride +
           query(p, row) * tensor.query_stride + head(p, row) * tensor.head_stride;
  }
  // Row r sees the keys below this: queries of a step are causal among themselves.
  __device__ int end(const Step& p, int row, int length) const {
    return length - (p.q_len - 1 - query(p, row));
  }

  // NaN gain where alpha or the scale is not what entmax takes.
  __device__ Entmax entmax(const Step& p, int row) const {
    const int h = head(p, row);
    const float alpha = p.alpha[p.alphas == 1 ? 0 : h], scale = p.scale[p.scales == 1 ? 0 : h];
    Entmax result(alpha, scale);
    if (!entmax::attention_takes(alpha) || !(scale > 0 && scale < INFINITY)) result.gain = NAN;
    return result;
  }

  // The page that holds a key, or -1 for a hole.
  __device__ int page(const Step& p, int key) const { return pages[key >> p.page_shift]; }
  // A key's place in the pool. Strides are below 2^31 (plan.cpp), so that each product is one instruction.
  template <class T>
  __device__ const T* in_page(const Step& p, const PagedTensor& tensor, int page, int key) const {
    const auto times = [](int count, int64_t stride) {
      return uint64_t{static_cast<uint32_t>(count)} * static_cast<uint32_t>(stride);
    };
    return static_cast<const T*>(tensor.data) + times(page, tensor.page_stride) +
           times(key & (p.cache.page_size - 1), tensor.token_stride) + times(kv_head, tensor.head_stride);
  }
  // Null for a hole and for keys outside [0, length).
  template <class T>
  __device__ const T* key_of(const Step& p, const PagedTensor& tensor, int key, int length) const {
    if (key < 0 || key >= length) return nullptr;
    const int at = page(p, key);
    return at < 0 ? nullptr : in_page<T>(p, tensor, at, key);
  }
};

// What decides which kernel takes a unit (step.cuh) is read from the L2: kernels run beside one another
// there, and L1 might hold what the last step had.
template <class T>
__device__ __forceinline__ T read_from_l2(const T* from) {
#ifdef __CUDA_ARCH__
  return __ldcg(from);
#else
  return *from;
#endif
}

// Step::broad, of a unit: whether its last step was, and whether its next one will be.
__device__ __forceinline__ bool was_broad(const Step& p, int unit) {
  return p.broad != nullptr &&
         (read_from_l2(p.broad + unit / p.row_tiles) >> unit % p.row_tiles % 32 & 1) != 0;
}
__device__ __forceinline__ void remember_broad(const Step& p, int unit, bool is_broad) {
  if (p.broad == nullptr) return;
  uint32_t* const word = p.broad + unit / p.row_tiles;
  const uint32_t bit = 1u << unit % p.row_tiles % 32;
  if (is_broad) {
    atomicOr(word, bit);
  } else {
    atomicAnd(word, ~bit);
  }
}

// What a lane's rows 2 t and 2 t + 1 see.
struct Visible {
  int end[2], window, sinks;

  __device__ Visible(const Step& p, const Unit& unit, int length, int lane)
      : window(p.window), sinks(p.sinks) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 2 * (lane % 4) + j;
      end[j] = row < unit.rows ? unit.end(p, row, length) : 0;
    }
    if (window == 0) window = 1 << 30;
  }

  __device__ bool operator()(int j, int key) const {
    return key < end[j] && (key >= end[j] - window || key < sinks);
  }
};

// The same of any row.
__device__ __forceinline__ bool row_sees(const Step& p, const Unit& unit, int row, int key, int length) {
  const int end = unit.end(p, row, length);
  return key < end && (p.window == 0 || key >= end - p.window || key < p.sinks);
}

// A unit's queries in shared memory, 0 where it lacks a row; 16 bytes apart, so that no two share a bank.
template <class T, int kDim>
struct HeldQueries {
  static constexpr int kChunks = kDim / 8, kLoads = kRows * kChunks;  // of 16 bytes each
  __align__(16) InProducts<T> rows[kRows][kDim + 8];

  // Load `at` of the unit's rows.
  static __device__ uint4 load(const Step& p, const Unit& unit, int at) {
    const int row = at / kChunks;
    if (at >= kLoads || row >= unit.rows) return {};
    return entmax::load8(unit.row_of<const InProducts<T>>(p, p.q, row) + 8 * (at % kChunks));
  }
  __device__ void store(int at, uint4 words) {
    if (at < kLoads) *reinterpret_cast<uint4*>(rows[at / kChunks] + 8 * (at % kChunks)) = words;
  }
};

// The unit's queries as operand B of mma.m16n8k16: lane 4 g + t holds, of row g, the channels that it reads
// of keys, eight as word w, which serves two products. Rows that the unit lacks are 0.
template <class T, int kDim>
struct Queries {
  uint4 words[kDim / 32];

  // Where word w begins. A lane reads kEach<T> channels of a key at once.
  static __device__ constexpr int channel_of(int w, int lane) {
    constexpr int kTogether = kEach<T> / 8;  // words
    return kEach<T> * (4 * (w / kTogether) + lane % 4) + 8 * (w % kTogether);
  }

  __device__ Queries(const HeldQueries<T, kDim>& held, int lane) {
#pragma unroll
    for (int w = 0; w < kDim / 32; ++w)
      words[w] = *reinterpret_cast<const uint4*>(held.rows[lane / 4] + channel_of(w, lane));
  }
};

// 16 keys as operand A: the lane's words of keys g and g + 8; 0 where there is none (null).
template <class T, int kDim>
struct KeyChunk {
  static constexpr int kWords = kDim / (4 * kEach<T>);
  uint4 low[kWords], high[kWords];

  __device__ __forceinline__ void load(const T* of_low, const T* of_high, int lane) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int at = kEach<T> * (4 * w + lane % 4);
      low[w] = of_low == nullptr ? uint4{} : entmax::load8(of_low + at);
      high[w] = of_high == nullptr ? uint4{} : entmax::load8(of_high + at);
    }
  }

  // 16 keys from `first` on, a multiple of 16, which their page holds; -1: a hole.
  __device__ __forceinline__ void load_from_page(const Step& p, const Unit& unit, int first, int page,
                                                 int lane) {
    const T* key = page < 0 ? nullptr : unit.in_page<T>(p, p.cache.keys, page, first + lane / 4);
    load(key, key == nullptr ? nullptr : key + 8 * p.cache.keys.token_stride, lane);
  }

  // Scores <q, k>: d holds rows 2 t and 2 t + 1 of key g, then of key g + 8. The bits of a score depend on
  // its query and key alone.
  __device__ __forceinline__ void score(const Queries<T, kDim>& q, float (&d)[4]) const {
    d[0] = d[1] = d[2] = d[3] = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (kIsFp8<T>) {
        const uint4 &first = q.words[2 * w], &second = q.words[2 * w + 1];
        multiply(d, low[w].x, high[w].x, first.x, first.y);
        multiply(d, low[w].y, high[w].y, first.z, first.w);
        multiply(d, low[w].z, high[w].z, second.x, second.y);
        multiply(d, low[w].w, high[w].w, second.z, second.w);
      } else {
        arch::mma_m16n8k16<T>(d, {low[w].x, high[w].x, low[w].y, high[w].y}, q.words[w].x, q.words[w].y);
        arch::mma_m16n8k16<T>(d, {low[w].z, high[w].z, low[w].w, high[w].w}, q.words[w].z, q.words[w].w);
      }
    }
  }

 private:
  // Of four bytes of each key.
  static __device__ __forceinline__ void multiply(float (&d)[4], uint32_t of_low, uint32_t of_high,
                                                  uint32_t q0, uint32_t q1) {
    const uint2 a = arch::halves_of_e4m3(of_low), b = arch::halves_of_e4m3(of_high);
    arch::mma_m16n8k16<__half>(d, {a.x, b.x, a.y, b.y}, q0, q1);
  }
};

// Any 16 keys of the unit, on their way. The lane's keys: -1 for none.
template <class T, int kDim>
struct ChosenKeys {
  KeyChunk<T, kDim> chunk;
  int low, high;  // -1: it does not exist

  __device__ __forceinline__ void load(const Step& p, const Unit& unit, int of_low, int of_high, int length,
                                       int lane) {
    const T *from = unit.key_of<T>(p, p.cache.keys, of_low, length),
            *from_high = unit.key_of<T>(p, p.cache.keys, of_high, length);
    chunk.load(from, from_high, lane);
    low = from == nullptr ? -1 : of_low;
    high = from_high == nullptr ? -1 : of_high;
  }

  // Their scores, -inf where a row does not see a key.
  __device__ __forceinline__ void score(const Queries<T, kDim>& q, const Visible& sees, float (&d)[4]) const {
    chunk.score(q, d);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = i < 2 ? low : high;
      if (key < 0 || !sees(i % 2, key)) d[i] = -INFINITY;
    }
  }
};

// Lists those of 32 keys, one per lane, that are wanted: returns the lane's place, and adds to count. What
// the lanes have read before may be overwritten afterwards.
__device__ __forceinline__ int place_of(bool wanted, int lane, int& count) {
  const unsigned mask = __ballot_sync(kAllLanes, wanted);
  __syncwarp();
  const int place = count + __popc(mask & ((1u << lane) - 1));
  count += __popc(mask);
  return place;
}

// The sum of the values of the lanes up to this one.
__device__ __forceinline__ int sum_up_to(int value, int lane) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int before = __shfl_up_sync(kAllLanes, value, lanes);
    value += lane >= lanes ? before : 0;
  }
  return value;
}

// Lists those of several keys a lane, as bits, that are wanted, in lane order: returns the first of the
// lane's places, and adds to count.
__device__ __forceinline__ int places_of(unsigned wanted, int lane, int& count) {
  const int end = count + sum_up_to(__popc(wanted), lane);
  count = __shfl_sync(kAllLanes, end, 31);
  return end - __popc(wanted);
}

// What a lane has of a screen's upper scores. Of 16 keys and up to eight rows they stand as d of
// mma.m16n8k16: rows 2 t and 2 t + 1 of keys g and g + 8. Up to four rows would leave half of the columns
// empty. So of two chunks of 16 keys the first has columns 0 to 3, the second 4 to 7: lanes with t > 1 have
// rows 2 t - 4 and 2 t - 3 of keys 16 + g and 24 + g.
struct ScreenLane {
  int lane;
  bool has_two_chunks;

  __device__ int row() const { return 2 * (lane & (has_two_chunks ? 1 : 3)); }  // the first of its two
  // The first of its two among the chunks'. The other is eight keys behind it.
  __device__ int key() const { return (lane >> 2) + (has_two_chunks ? 8 * (lane & 2) : 0); }
  // The first lane of those that have the same keys.
  __device__ int leader() const { return lane & (has_two_chunks ? ~1 : ~3); }
  __device__ bool leads() const { return lane == leader(); }
};

// Of a call's keys those that are wanted: whether the lane's two are, and their places behind `count`, which
// grows by all of them. In key order.
struct WantedKeys {
  bool low, high;
  int low_place, high_place;

  // wanted: of the lane's upper scores.
  __device__ __forceinline__ WantedKeys(const bool (&wanted)[4], const ScreenLane& lane, int& count) {
    // Of lanes that share a key, one bit: the leader's.
    const auto leaders = [&](bool is_wanted) {
      unsigned mask = __ballot_sync(kAllLanes, is_wanted);
      mask |= mask >> 1;
      return lane.has_two_chunks ? mask & 0x55555555u : (mask | mask >> 2) & kQuads;
    };
    const unsigned of_low = leaders(wanted[0] || wanted[1]), of_high = leaders(wanted[2] || wanted[3]);
    const bool is_second = lane.has_two_chunks && (lane.lane & 2) != 0;
    const unsigned before = (1u << lane.leader()) - 1, own = is_second ? kQuads << 2 : kQuads,
                   other = is_second ? kQuads : 0;  // of the first chunk
    const int first = count + __popc(of_low & other) + __popc(of_high & other);
    low_place = first + __popc(of_low & own & before);
    high_place = first + __popc(of_low & own) + __popc(of_high & own & before);
    count += __popc(of_low) + __popc(of_high);
    low = (of_low >> lane.leader() & 1) != 0;
    high = (of_high >> lane.leader() & 1) != 0;
  }

 private:
  static constexpr unsigned kQuads = 0x11111111u;
};

// Of each row, in a block's shared memory: a base, in z, and a bound, in <q, k>, which its threshold is not
// below, and the bound as HeldCodes has it.
struct RowBounds {
  float bases[kRows], bounds[kRows];
  __align__(4) uint8_t codes[kRows];
};

template <int kScores>
struct Scores {
  float of_lane[kScores];
};

// A lower bound, in <q, k>, of the threshold of keys among which are these, at `entmax`: Newton's iterates
// from the left, each below the root (gpu/entmax/math/arithmetic.cuh), less what rounding may add. They begin
// at `from`, a bound that is known; -inf where these keys do not raise it. The warp's lanes pass kScores
// each, -inf for none. Sums of the lanes are of integers, for which there is one instruction: of f rounded
// down, of its slope rounded up, so that no step is too long by more than the slack covers.
template <int kScores>
__device__ __noinline__ float bound_of(Entmax entmax, Scores<kScores> scores, float from) {
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kScores; ++i) largest = fmaxf(largest, scores.of_lane[i]);
  largest = arch::warp_max(largest);
  if (!(largest > -INFINITY && largest < INFINITY) || !(entmax.gain > 0)) return -INFINITY;
  float shift = fminf(entmax.gain * (largest - from), 1.0f);  // z_max - tau
#pragma unroll
  for (float& score : scores.of_lane) score = entmax.gain * (score - largest);
#pragma unroll 1
  for (int step = 0; step < 12; ++step) {
    float sum = 0, slope = 0;
    entmax.visit([&](auto kind) {
#pragma unroll
      for (const float score : scores.of_lane) {
        const float u = score + shift, slope_here = entmax.slope(kind, u);
        sum += fmaxf(u, 0.0f) * slope_here;
        slope += slope_here;
      }
    });
    constexpr float kUnits = 0x1p20f;  // u is at most 1, and so is each term
    static_assert(32 * kScores < 1 << 11);
    const int all = __reduce_add_sync(kAllLanes, static_cast<int>(sum * kUnits)),
              all_slopes = __reduce_add_sync(kAllLanes, static_cast<int>(slope * kUnits) + 1);
    const float excess = static_cast<float>(all) - kUnits;
    if (step == 0 && !(excess >= 0)) return -INFINITY;
    const float moved = __fdividef(excess, entmax.beta * static_cast<float>(all_slopes));
    shift -= fmaxf(moved, 0.0f);
    if (!(moved > 0x1p-7f)) break;  // near enough: any iterate is a bound
  }
  const float slack = 0x1p-18f * (1 + entmax.gain * fabsf(largest));
  return largest - (shift + slack) / entmax.gain;
}

}  // namespace splash::gpu::decode
