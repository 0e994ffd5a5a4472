#pragma once
// Screens the keys between head and tail: the warps of a team share the tiles (up to 64 keys of one page),
// each takes a run of them. A warp lists the keys whose upper score is above the bound of any row, in key
// order, in a segment of its own, and for each row keeps some of the best, which refine_bounds scores
// exactly.
//
// LowBitScreen reads the low-bit copy: the next tile is on its way into shared memory (cp.async) while this
// one is scored, and a code becomes an exact float16 integer in two instructions for two codes. ExactScreen
// serves caches without a copy: its upper scores are the exact ones.

#include "core/low_bit_page.h"
#include "gpu/arch/cp_async.cuh"
#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// The run of one warp: `count` tiles from `first` on.
struct Run {
  int first, count;

  __device__ Run(const Ranges& ranges, int warp, int warps) {
    const int each = (ranges.tiles - ranges.first_tile + warps - 1) / warps;
    first = min(ranges.first_tile + warp * each, ranges.tiles);
    count = min(each, ranges.tiles - first);
  }
};

// What a warp finds. A lane sees rows 2 t and 2 t + 1 of keys g and g + 8.
class Found {
 public:
  __device__ Found(const Step& p, const Unit& unit, int segment, int lane)
      : segment_(segment), lane_(lane), stride_(p.listed_rows) {
    const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment_);
    keys_ = p.keys + list;
    if (2 * (lane % 4) < p.listed_rows) scores_ = p.scores + list * p.listed_rows + 2 * (lane % 4);
  }

  // upper: as d of mma.m16n8k16, in units that `unit` turns into <q, k>; wanted: those above their row's
  // bound. key: the lane's key g.
  __device__ __forceinline__ void add(int key, const float (&upper)[4], const bool (&wanted)[4],
                                      const float (&unit)[2]) {
    if (!__any_sync(kAllLanes, wanted[0] || wanted[1] || wanted[2] || wanted[3])) return;
    const unsigned low = quads(__ballot_sync(kAllLanes, wanted[0] || wanted[1])),
                   high = quads(__ballot_sync(kAllLanes, wanted[2] || wanted[3]));
    const unsigned before = (1u << (lane_ & ~3)) - 1;
    const int low_place = count_ + __popc(low & before),
              high_place = count_ + __popc(low) + __popc(high & before);
    count_ += __popc(low) + __popc(high);
    if ((low >> (lane_ & ~3) & 1) != 0) put(low_place, key, upper[0] * unit[0], upper[1] * unit[1]);
    if ((high >> (lane_ & ~3) & 1) != 0) put(high_place, key + 8, upper[2] * unit[0], upper[3] * unit[1]);
  }

  __device__ int count() const { return count_; }

  // Writes the count, and each row's best keys so far. pass: 0 or 1.
  __device__ void propose(const Step& p, const Unit& unit, int pass) const {
    if (lane_ == 0) p.counts[unit.index * p.segments.count() + segment_] = count_;
    const int apart = 4 * kMostBest / p.best_of_run;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Best best = best_[j];
      for (int lanes = 4; lanes < apart; lanes *= 2) {
        const float upper = __shfl_xor_sync(kAllLanes, best.upper, lanes);
        const int key = __shfl_xor_sync(kAllLanes, best.key, lanes);
        if (upper > best.upper) best = {upper, key};
      }
      const int64_t of_row = (int64_t{unit.index} * kRows + 2 * (lane_ % 4) + j) * 2 + pass;
      if (lane_ % apart < 4)
        p.best[(of_row * p.segments.runs + segment_ - 1) * p.best_of_run + lane_ / apart] = best;
    }
  }

 private:
  // One bit per quad, its first lane's.
  static __device__ unsigned quads(unsigned mask) {
    mask |= mask >> 1;
    return (mask | mask >> 2) & 0x11111111u;
  }
  __device__ __forceinline__ void put(int place, int key, float first, float second) {
    if (lane_ % 4 == 0) keys_[place] = key;
    if (scores_ != nullptr) *reinterpret_cast<float2*>(scores_ + place * stride_) = {first, second};
    if (first > best_[0].upper) best_[0] = {first, key};
    if (second > best_[1].upper) best_[1] = {second, key};
  }

  int segment_, lane_, stride_;
  int32_t* keys_;
  float* scores_ = nullptr;  // of the lane's rows; null where none is listed
  int count_ = 0;
  Best best_[2] = {{-INFINITY, -1}, {-INFINITY, -1}};
};

// Bits of two float16 as one register, and back.
__device__ __forceinline__ __half2 as_half2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ uint32_t as_bits(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The queries in float16, each row times a power of two that brings its largest element into [64, 128), and
// what the lane needs of its rows 2 t and 2 t + 1.
template <class T, int kDim, int kBits>
struct ScreenQueries {
  uint32_t words[kDim / 32][4];
  float norm[2], unit[2], restore[2];  // norm: rounded up; unit: the scaling; restore: undoes it

  __device__ ScreenQueries(const Queries<T, kDim>& q, int lane) {
    const auto for_each_pair = [&](const auto& use) {
#pragma unroll
      for (int w = 0; w < kDim / 32; ++w) {
        const uint32_t bits[4] = {q.words[w].x, q.words[w].y, q.words[w].z, q.words[w].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) use(w, i, entmax::unpacked<T>(bits[i]));
      }
    };
    float largest = 0;
    for_each_pair(
        [&](int, int, float2 pair) { largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y))); });
    largest = arch::quad_max(largest);
    // 2^(6 - exponent). A row so small or so large that it cannot be scaled so is not screened: its norm is
    // infinite.
    const int biased = static_cast<int>(__float_as_uint(largest) >> 23), exponent = min(max(biased, 27), 227);
    const bool scaled = largest == 0 || biased == exponent;
    const float factor = __uint_as_float(static_cast<uint32_t>(133 + 127 - exponent) << 23);
    float square = 0;
    for_each_pair([&](int w, int i, float2 pair) {
      const float x = pair.x * factor, y = pair.y * factor;
      square += x * x + y * y;
      words[w][i] = arch::pack_pair<__half>(x, y);
    });
    square = arch::quad_sum(square);
    const float row_norm = scaled ? sqrtf(square) * (1 + 0x1p-18f) : INFINITY;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 2 * (lane % 4) + j;
      constexpr float kUnit = kBits == 4 ? 0x1p-24f : 1.0f;  // of the sums
      norm[j] = __shfl_sync(kAllLanes, row_norm, 4 * row) * kUnit;
      unit[j] = __shfl_sync(kAllLanes, factor, 4 * row) * kUnit;
      restore[j] = 1 / unit[j];
    }
  }
};

// Two stored 4-bit codes as float16 subnormals, without conversion: code 2^-24 from the low nibble of each
// byte, 16 code 2^-24 from the high one.
constexpr uint32_t kLowNibbles = 0x000F000Fu, kHighNibbles = 0x00F000F0u;
constexpr float kNibbleUnit = 0x1p-24f;
constexpr uint32_t kMinusEightLow = 0x80088008u, kMinusEightHigh = 0x80808080u;  // -8 in these units
constexpr uint32_t kSixteenth = 0x2C002C00u;

// Two stored bytes as float16 integers, code - 128.
__device__ __forceinline__ uint32_t codes_of_bytes(uint32_t word, unsigned selector) {
  return as_bits(__hsub2(as_half2(__byte_perm(word, 0x64646464u, selector)), as_half2(0x64806480u)));
}

// What a warp holds in shared memory: two stages of a tile's scales, zero points, margins and codes.
template <int kDim, int kBits>
struct Stages {
  static constexpr int kTileKeys = tile_keys_of(kBits), kChunkBytes = 2 * kDim * kBits;  // codes of 16 keys
  static constexpr int kMarginsAt = 4 * kDim, kCodesAt = kMarginsAt + 2 * kTileKeys;
  static constexpr int kStageBytes = kCodesAt + kTileKeys / 16 * kChunkBytes;

  __align__(16) unsigned char bytes[2][kStageBytes];
};

template <class T, int kDim, int kBits>
class LowBitScreen {
 public:
  using Memory = Stages<kDim, kBits>;

  // Starts the copy of the run's first tile. All arguments outlive the screen.
  __device__ LowBitScreen(const Step& p, const Unit& unit, const Ranges& ranges, const Run& run,
                          Memory& memory, int lane)
      : p_(p),
        unit_(unit),
        ranges_(ranges),
        run_(run),
        memory_(memory),
        lane_(lane),
        q_({p, unit, lane}, lane) {
    layout_ = {p.cache.page_size, kDim, kBits};
    page_ahead_ = page_of(0);
    load(0);
  }

  // Screens tiles [begin, end) of the run. Calls follow one another without a gap, from 0 on.
  __device__ void screen(int begin, int end, const float (&bounds)[kRows], Found& found) {
#pragma unroll
    for (int j = 0; j < 2; ++j) bound_[j] = bounds[2 * (lane_ % 4) + j] * q_.unit[j];
    for (int i = begin; i < end; ++i) {
      const bool is_hole = page_ < 0;
      load(i + 1);
      arch::cp_async_wait<1>();
      __syncwarp();
      if (!is_hole) screen_tile(i, found);
      __syncwarp();  // the next load overwrites the stage
    }
  }

 private:
  // The page of the run's tile i; -1 where it has no such tile or none is in the pool.
  __device__ __forceinline__ int page_of(int i) const {
    const int page = i < run_.count ? unit_.page(p_, (run_.first + i) * ranges_.tile_keys) : -1;
    return page < p_.cache.pages ? page : -1;
  }

  // Starts the copy of the run's tile i into stage i % 2; the number of the next page is on its way.
  __device__ __forceinline__ void load(int i) {
    page_ = page_ahead_;
    page_ahead_ = page_of(i + 1);
    if (page_ >= 0) {
      unsigned char* stage = memory_.bytes[i % 2];
      const uint8_t* from =
          p_.cache.low_bit + (int64_t{page_} * p_.cache.kv_heads + unit_.kv_head) * int64_t{layout_.bytes()};
      const int in_page = (run_.first + i) * ranges_.tile_keys & (p_.cache.page_size - 1);
      copy<4 * kDim>(stage, from, 4 * kDim);
      copy<2 * Memory::kTileKeys>(stage + Memory::kMarginsAt, from + layout_.margins_at() + 2 * in_page,
                                  2 * ranges_.tile_keys);
      copy<Memory::kTileKeys / 16 * Memory::kChunkBytes>(
          stage + Memory::kCodesAt, from + layout_.codes_at() + in_page / 16 * Memory::kChunkBytes,
          ranges_.tile_keys / 16 * Memory::kChunkBytes);
    }
    arch::cp_async_commit();
  }

  // Screens a tile that has arrived.
  __device__ __forceinline__ void screen_tile(int i, Found& found) const {
    const int key = (run_.first + i) * ranges_.tile_keys;
    const unsigned char* stage = memory_.bytes[i % 2];
    // Fold the scales into the queries; <q, zero> is where each sum starts. Sums have two halves, so that
    // products wait for one another half as often.
    uint32_t q[kDim / 32][4];
    float start[2][4] = {};
#pragma unroll
    for (int w = 0; w < kDim / 32; ++w) {
      const auto* group = reinterpret_cast<const uint4*>(stage) + 4 * w + lane_ % 4;
      const uint4 scale = group[0], zero = group[kDim / 8];
      q[w][0] = as_bits(__hmul2(as_half2(q_.words[w][0]), as_half2(scale.x)));
      q[w][1] = as_bits(__hmul2(as_half2(q_.words[w][1]), as_half2(scale.y)));
      q[w][2] = as_bits(__hmul2(as_half2(q_.words[w][2]), as_half2(scale.z)));
      q[w][3] = as_bits(__hmul2(as_half2(q_.words[w][3]), as_half2(scale.w)));
      arch::mma_m16n8k16<__half>(start[0], {zero.x, zero.x, zero.y, zero.y}, q_.words[w][0], q_.words[w][1]);
      arch::mma_m16n8k16<__half>(start[1], {zero.z, zero.z, zero.w, zero.w}, q_.words[w][2], q_.words[w][3]);
    }
    if constexpr (kBits == 4) {  // sums are in units of kNibbleUnit; stored codes are 8 too large
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        start[0][i] *= kNibbleUnit;
        start[1][i] *= kNibbleUnit;
      }
#pragma unroll
      for (int w = 0; w < kDim / 32; ++w) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          q[w][i + 1] = as_bits(__hmul2(as_half2(q[w][i + 1]), as_half2(kSixteenth)));
          arch::mma_m16n8k16<__half>(start[i / 2],
                                     {kMinusEightLow, kMinusEightLow, kMinusEightHigh, kMinusEightHigh},
                                     q[w][i], q[w][i + 1]);
        }
      }
    }
    const auto* margins = reinterpret_cast<const uint16_t*>(stage + Memory::kMarginsAt) + lane_ / 4;
    for (int chunk = key == 0 ? 1 : 0; chunk < ranges_.tile_keys / 16;
         ++chunk) {  // the first 16 keys are head
      uint32_t codes[kDim * kBits / 64];
      const auto* from =
          reinterpret_cast<const uint4*>(stage + Memory::kCodesAt + chunk * Memory::kChunkBytes) + lane_;
#pragma unroll
      for (int i = 0; i < kDim * kBits / 256; ++i) {
        const uint4 word = from[32 * i];
        codes[4 * i] = word.x;
        codes[4 * i + 1] = word.y;
        codes[4 * i + 2] = word.z;
        codes[4 * i + 3] = word.w;
      }
      float halves[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) halves[i / 4][i % 4] = start[i / 4][i % 4];
      const uint32_t *low = codes, *high = codes + kDim * kBits / 128;
#pragma unroll
      for (int w = 0; w < kDim / 32; ++w) {
        if constexpr (kBits == 4) {
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const uint32_t a = low[w] >> 4 * i, b = high[w] >> 4 * i;
            arch::mma_m16n8k16<__half>(halves[i / 2],
                                       {a & kLowNibbles, b & kLowNibbles, a & kHighNibbles, b & kHighNibbles},
                                       q[w][i], q[w][i + 1]);
          }
        } else {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t a = low[2 * w + half], b = high[2 * w + half];
            arch::mma_m16n8k16<__half>(halves[half],
                                       {codes_of_bytes(a, 0x4140), codes_of_bytes(b, 0x4140),
                                        codes_of_bytes(a, 0x4342), codes_of_bytes(b, 0x4342)},
                                       q[w][2 * half], q[w][2 * half + 1]);
          }
        }
      }
      const float margin[2] = {float_of_bfloat16(margins[16 * chunk]),
                               float_of_bfloat16(margins[16 * chunk + 8])};
      float d[4];
      bool wanted[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d[i] = fmaf(q_.norm[i % 2], margin[i / 2], halves[0][i] + halves[1][i]);
        wanted[i] = !(d[i] <= bound_[i % 2]);  // a NaN is wanted
      }
      found.add(key + 16 * chunk + lane_ / 4, d, wanted, q_.restore);
    }
  }

 private:
  template <int kMost>
  __device__ __forceinline__ void copy(unsigned char* to, const uint8_t* from, int bytes) const {
    to += 16 * lane_;
    from += 16 * lane_;
#pragma unroll
    for (int at = 0; at < kMost; at += 16 * 32) {
      if (at + 16 * lane_ < bytes) arch::cp_async_16(to + at, from + at);
    }
  }

  const Step& p_;
  const Unit& unit_;
  const Ranges& ranges_;
  const Run& run_;
  Memory& memory_;
  int lane_;
  int page_ = -1, page_ahead_ = -1;  // of the tile loaded last, and of the next one
  float bound_[2];
  LowBitLayout layout_{};
  ScreenQueries<T, kDim, kBits> q_;
};

template <class T, int kDim>
class ExactScreen {
 public:
  struct Memory {};

  __device__ ExactScreen(const Step& p, const Unit& unit, const Ranges& ranges, const Run& run,
                         Memory& /*memory*/, int lane)
      : p_(p), unit_(unit), ranges_(ranges), run_(run), q_(p, unit, lane), lane_(lane) {}

  // Screens tiles [begin, end) of the run.
  __device__ void screen(int begin, int end, const float (&bounds)[kRows], Found& found) const {
    if (begin >= end) return;
    const float bound[2] = {bounds[2 * (lane_ % 4)], bounds[2 * (lane_ % 4) + 1]};
    // The next 16 keys, and the page of the tile after theirs, are on their way while these are scored.
    const int tile_keys = ranges_.tile_keys;
    const int first_key = max((run_.first + begin) * tile_keys, kHeadKeys),
              end_key = (run_.first + end) * tile_keys;
    KeyChunk<T, kDim> next;
    int page = first_key < end_key ? unit_.page(p_, first_key) : -1;
    const int second_tile = (first_key / tile_keys + 1) * tile_keys;
    int page_ahead = second_tile < end_key ? unit_.page(p_, second_tile) : -1;
    next.load_from_page(p_, unit_, first_key, page, lane_);
    for (int first = first_key; first < end_key; first += 16) {
      const KeyChunk<T, kDim> now = next;
      const bool is_hole = page < 0;
      const int following = first + 16;
      if (following < end_key) {
        if (following % tile_keys == 0) {
          page = page_ahead;
          if (following + tile_keys < end_key) page_ahead = unit_.page(p_, following + tile_keys);
        }
        next.load_from_page(p_, unit_, following, page, lane_);
      }
      float d[4];
      now.score(q_, d);
      bool wanted[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) wanted[i] = !is_hole && !(d[i] <= bound[i % 2]);
      found.add(first + lane_ / 4, d, wanted, {1, 1});
    }
  }

 private:
  const Step& p_;
  const Unit& unit_;
  const Ranges& ranges_;
  const Run& run_;
  Queries<T, kDim> q_;
  int lane_;
};

template <class T, int kDim, int kBits>
struct ScreenOf {
  using Type = LowBitScreen<T, kDim, kBits>;
};
template <class T, int kDim>
struct ScreenOf<T, kDim, 0> {
  using Type = ExactScreen<T, kDim>;
};

}  // namespace splash::gpu::decode
