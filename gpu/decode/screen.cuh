#pragma once
// Screens the keys between head and tail: the warps of a team share the tiles (up to 64 keys of one page),
// each takes a run of them, and gets upper scores of 16 or 32 keys at a time.
//
// LowBitScreen reads the low-bit copy: the next tile is on its way into shared memory (cp.async) while this
// one is scored, and a code becomes an exact float16 integer in two instructions for two codes.
// exact_screen.cuh serves caches without a copy.

#include "core/low_bit_page.h"
#include "gpu/arch/cp_async.cuh"
#include "gpu/decode/candidates.cuh"
#include "gpu/decode/exact_screen.cuh"
#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// Bits of two float16 as one register, and back.
__device__ __forceinline__ __half2 as_half2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ uint32_t as_bits(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The queries as a screen takes them, in a block's shared memory: in float16, each row times a power of two
// that brings its largest element into [64, 128).
template <int kDim>
struct ScreenQueries {
  __align__(16) uint32_t words[kDim / 32][32][4];  // of each lane: the i'th of four channel pairs at(i)
  // Of each row. norm: rounded up; unit: the scaling; restore: undoes it.
  float norm[kRows / 2][2], unit[kRows / 2][2], restore[kRows / 2][2];

  // Even ones before odd ones, so that two neighbours are an operand of the zero points' products.
  static __device__ constexpr int at(int i) { return i % 2 * 2 + i / 2; }

  // One warp calls it; a barrier must follow.
  template <int kBits, class T>
  __device__ __forceinline__ void make(const HeldQueries<T, kDim>& held, int lane) {
    const Queries<T, kDim> q(held, lane);
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
      words[w][lane][at(i)] = arch::pack_pair<__half>(x, y);
    });
    square = arch::quad_sum(square);
    if (lane % 4 != 0) return;
    constexpr float kUnit = kBits == 4 ? 0x1p-24f : 1.0f;  // of the sums
    const int pair = lane / 8, j = lane / 4 % 2;
    norm[pair][j] = (scaled ? sqrtf(square) * (1 + 0x1p-18f) : INFINITY) * kUnit;
    unit[pair][j] = factor * kUnit;
    restore[pair][j] = 1 / (factor * kUnit);
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

template <class T, int kDim, int kBits>
class LowBitScreen {
  static constexpr int kStages = 2;  // for tiles on their way
  // A stage has a tile's bytes as a page of so many keys would: scales and zero points, margins, and codes of
  // each 16 keys.
  static constexpr int kTileKeys = tile_keys_of(kBits), kChunkBytes = 2 * kDim * kBits;
  static constexpr int kMarginsAt = 4 * kDim,
                       kStageBytes = kMarginsAt + 2 * kTileKeys + kTileKeys / 16 * kChunkBytes;

 public:
  static constexpr int kWarpBytes = kStages * kStageBytes;

  // What the warps of a block share. One of them prepares it; a barrier must follow.
  using Shared = ScreenQueries<kDim>;
  static __device__ __forceinline__ void prepare(Shared& shared, const HeldQueries<T, kDim>& q, int lane) {
    shared.template make<kBits>(q, lane);
  }

  static __device__ ScreenLane lane_of(const Step& p, int lane) {
    return {lane, p.listed_rows <= kRows / 2 && p.cache.page_size >= kTileKeys};
  }

  // Starts the copies of the run's first tiles. All arguments outlive the screen. stages: the warp's.
  // `shared` need not be prepared yet.
  __device__ LowBitScreen(const Step& p, const Unit& unit, const Ranges& ranges, const Run& run,
                          const HeldQueries<T, kDim>& /*q*/, const Shared& shared, unsigned char* stages,
                          const ScreenLane& lane)
      : p_(p), unit_(unit), ranges_(ranges), run_(run), q_(shared), stages_(stages), lane_(lane) {
    const LowBitLayout layout{p.cache.page_size, kDim, kBits};
    page_bytes_ = layout.bytes();
    codes_at_ = kMarginsAt + 2 * ranges.tile_keys;
    from_ = p.cache.low_bit + int64_t{unit.kv_head} * page_bytes_ + 16 * lane.lane;
    page_ = page_of(0);
    page_next_ = page_of(1);
    load(0, stages_, page_);
    page_ahead_ = page_of(kStages);
  }

  // Starts those of all tiles for which there is room. A warp that asks for much at once waits.
  __device__ __forceinline__ void load_ahead() { load(1, stages_ + kStageBytes, page_next_); }

  // What turns the upper scores of a lane's rows into <q, k>, and back.
  __device__ const float (&unit() const)[2] { return q_.restore[lane_.row() / 2]; }
  __device__ const float (&from_unit() const)[2] { return q_.unit[lane_.row() / 2]; }

  // Screens tiles [begin, end) of the run: calls take(key, upper) for each 16 or 32 keys but the head, with
  // the lane's first key, and upper scores as ScreenLane has them; -inf for keys of the head among others.
  // Calls follow one another without a gap, from tile 0 on.
  template <class Take>
  __device__ __forceinline__ void screen(int begin, int end, const Take& take) {
    for (int i = begin; i < end; ++i) {
      arch::cp_async_wait<kStages - 1>();
      __syncwarp();
      unsigned char* const stage = stages_ + i % kStages * kStageBytes;
      if (page_ >= 0) {
        const int key = (run_.first + i) * ranges_.tile_keys;
        if (lane_.has_two_chunks) {
          screen_tile<true>(key, stage, take);
        } else {
          screen_tile<false>(key, stage, take);
        }
      }
      __syncwarp();  // the load overwrites the stage
      load(i + kStages, stage, page_ahead_);
      page_ = page_next_;
      page_next_ = page_ahead_;
      page_ahead_ = page_of(i + kStages + 1);
    }
  }

 private:
  // The page of the run's tile i; -1 where it has no such tile or none is in the pool.
  __device__ __forceinline__ int page_of(int i) const {
    const int page = i < run_.count ? unit_.page(p_, (run_.first + i) * ranges_.tile_keys) : -1;
    return page < p_.cache.pages ? page : -1;
  }

  // Starts the copy of the run's tile i, of a page or of none.
  __device__ __forceinline__ void load(int i, unsigned char* stage, int page) {
    if (page >= 0) {
      const uint8_t* const from = from_ + int64_t{page} * (p_.cache.kv_heads * page_bytes_);
      stage += 16 * lane_.lane;
      if (p_.cache.page_size <= kTileKeys) {  // a tile is a page
        copy<kStageBytes>(stage, from, page_bytes_);
      } else {
        const int first = (run_.first + i) * kTileKeys & (p_.cache.page_size - 1);
        copy<kMarginsAt>(stage, from, kMarginsAt);
        copy<2 * kTileKeys>(stage + kMarginsAt, from + kMarginsAt + 2 * first, 2 * kTileKeys);
        copy<kTileKeys / 16 * kChunkBytes>(
            stage + kMarginsAt + 2 * kTileKeys,
            from + kMarginsAt + 2 * p_.cache.page_size + first / 16 * kChunkBytes,
            kTileKeys / 16 * kChunkBytes);
      }
    }
    arch::cp_async_commit();
  }

  // The lane's part of `bytes`, at most kMost.
  template <int kMost>
  __device__ __forceinline__ void copy(unsigned char* to, const uint8_t* from, int bytes) const {
#pragma unroll
    for (int at = 0; at < kMost; at += 16 * 32) {
      if (at + 16 * lane_.lane < bytes) arch::cp_async_16(to + at, from + at);
    }
  }

  // Screens a tile that has arrived. key: its first.
  template <bool kTwoChunks, class Take>
  __device__ __forceinline__ void screen_tile(int key, const unsigned char* stage, const Take& take) const {
    const int lane = lane_.lane;
    // Fold the scales into the queries; <q, zero> is where each sum starts. A lane's four words of zeros are
    // one operand as they stand: row g takes two of them, row g + 8 the others, and of each product one half
    // counts.
    uint32_t q[kDim / 32][4];
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int w = 0; w < kDim / 32; ++w) {
      const auto* group = reinterpret_cast<const uint4*>(stage) + 4 * w + (lane & 3);
      const uint4 scale = group[0], zero = group[kDim / 8];
      // Two chunks have four rows, twice each.
      const uint4 words = *reinterpret_cast<const uint4*>(q_.words[w][kTwoChunks ? lane & 15 : lane]);
      q[w][0] = as_bits(__hmul2(as_half2(words.x), as_half2(scale.x)));
      q[w][1] = as_bits(__hmul2(as_half2(words.z), as_half2(scale.y)));
      q[w][2] = as_bits(__hmul2(as_half2(words.y), as_half2(scale.z)));
      q[w][3] = as_bits(__hmul2(as_half2(words.w), as_half2(scale.w)));
      arch::mma_m16n8k16<__half>(even, {zero.x, zero.y, zero.z, zero.w}, words.x, words.y);
      arch::mma_m16n8k16<__half>(odd, {zero.x, zero.y, zero.z, zero.w}, words.z, words.w);
    }
    float start[4] = {even[0] + odd[2], even[1] + odd[3]};
    if constexpr (kBits == 4) {  // sums are in units of kNibbleUnit; stored codes are 8 too large
      start[0] *= kNibbleUnit;
      start[1] *= kNibbleUnit;
    }
    start[2] = start[0];
    start[3] = start[1];
    if constexpr (kBits == 4) {
      float rest[4] = {};  // two sums, so that products wait for one another half as often
#pragma unroll
      for (int w = 0; w < kDim / 32; ++w) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          q[w][i + 1] = as_bits(__hmul2(as_half2(q[w][i + 1]), as_half2(kSixteenth)));
          arch::mma_m16n8k16<__half>(i == 0 ? start : rest,
                                     {kMinusEightLow, kMinusEightLow, kMinusEightHigh, kMinusEightHigh},
                                     q[w][i], q[w][i + 1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) start[i] += rest[i];
    }
    const auto* codes = reinterpret_cast<const uint4*>(stage + codes_at_) + lane;
    const auto* margins = reinterpret_cast<const uint16_t*>(stage + kMarginsAt) + lane_.key();
    const float norm[2] = {q_.norm[lane_.row() / 2][0], q_.norm[lane_.row() / 2][1]};
    const auto finish = [&](int chunk, float(&d)[4]) {
      const float margin[2] = {float_of_bfloat16(margins[16 * chunk]),
                               float_of_bfloat16(margins[16 * chunk + 8])};
#pragma unroll
      for (int i = 0; i < 4; ++i) d[i] = fmaf(norm[i % 2], margin[i / 2], d[i]);
    };
    if constexpr (kTwoChunks) {
      constexpr int kPairs = kTileKeys / 32;
      const bool is_second = (lane & 2) != 0;
      float d[kPairs][4];
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        float second[4];
        score(codes + 2 * pair * (kChunkBytes / 16), q, start, d[pair]);
        score(codes + (2 * pair + 1) * (kChunkBytes / 16), q, start, second);
#pragma unroll
        for (int i = 0; i < 4; ++i) d[pair][i] = is_second ? second[i] : d[pair][i];
        finish(2 * pair, d[pair]);
      }
      if (key == 0 && !is_second) {  // the first 16 keys are head
#pragma unroll
        for (float& upper : d[0]) upper = -INFINITY;
      }
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) take(key + 32 * pair + lane_.key(), d[pair]);
    } else {
#pragma unroll 1
      for (int chunk = key == 0 ? 1 : 0; chunk < ranges_.tile_keys / 16; ++chunk) {
        float d[4];
        score(codes + chunk * (kChunkBytes / 16), q, start, d);
        finish(chunk, d);
        take(key + 16 * chunk + lane_.key(), d);
      }
    }
  }

  // Scores of 16 keys, whose codes stand in the order of the operand, from `start` on: as d of mma.m16n8k16.
  static __device__ __forceinline__ void score(const uint4* from, const uint32_t (&q)[kDim / 32][4],
                                               const float (&start)[4], float (&d)[4]) {
    uint32_t codes[kDim * kBits / 64];
#pragma unroll
    for (int i = 0; i < kDim * kBits / 256; ++i) {
      const uint4 word = from[32 * i];
      codes[4 * i] = word.x;
      codes[4 * i + 1] = word.y;
      codes[4 * i + 2] = word.z;
      codes[4 * i + 3] = word.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = start[i];
    const uint32_t *low = codes, *high = codes + kDim * kBits / 128;
#pragma unroll
    for (int w = 0; w < kDim / 32; ++w) {
      if constexpr (kBits == 4) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const uint32_t a = low[w] >> 4 * i, b = high[w] >> 4 * i;
          arch::mma_m16n8k16<__half>(d,
                                     {a & kLowNibbles, b & kLowNibbles, a & kHighNibbles, b & kHighNibbles},
                                     q[w][i], q[w][i + 1]);
        }
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t a = low[2 * w + half], b = high[2 * w + half];
          arch::mma_m16n8k16<__half>(d,
                                     {codes_of_bytes(a, 0x4140), codes_of_bytes(b, 0x4140),
                                      codes_of_bytes(a, 0x4342), codes_of_bytes(b, 0x4342)},
                                     q[w][2 * half], q[w][2 * half + 1]);
        }
      }
    }
  }

  const Step& p_;
  const Unit& unit_;
  const Ranges& ranges_;
  const Run& run_;
  const Shared& q_;
  unsigned char* stages_;
  ScreenLane lane_;
  int page_bytes_, codes_at_;                         // codes_at_: of a stage
  int page_ = -1, page_next_ = -1, page_ahead_ = -1;  // of the tile to be screened, and of the next ones
  const uint8_t* from_;                               // the lane's first bytes of the key head's first page
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
