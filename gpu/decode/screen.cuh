#pragma once
// Screens the keys between head and tail: the warps of a team share the tiles (up to 64 keys of one page),
// each takes a run of them, and gets upper scores of 16 keys at a time.
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

// The queries in float16, each row times a power of two that brings its largest element into [64, 128), and
// what the lane needs of its rows 2 t and 2 t + 1.
template <class T, int kDim, int kBits>
struct ScreenQueries {
  uint32_t words[kDim / 32][4];        // the i'th of the lane's four channel pairs stands at(i)
  float norm[2], unit[2], restore[2];  // norm: rounded up; unit: the scaling; restore: undoes it

  // Even ones before odd ones, so that two neighbours are an operand of the zero points' products.
  static __device__ constexpr int at(int i) { return i % 2 * 2 + i / 2; }

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
      words[w][at(i)] = arch::pack_pair<__half>(x, y);
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

template <class T, int kDim, int kBits>
class LowBitScreen {
  static constexpr int kStages = 2;  // for tiles on their way
  // A stage: a tile's scales and zero points, margins, and codes of each 16 keys.
  static constexpr int kTileKeys = tile_keys_of(kBits), kChunkBytes = 2 * kDim * kBits;
  static constexpr int kMarginsAt = 4 * kDim, kCodesAt = kMarginsAt + 2 * kTileKeys;
  static constexpr int kStageBytes = kCodesAt + kTileKeys / 16 * kChunkBytes;

 public:
  static constexpr int kWarpBytes = kStages * kStageBytes;

  // Starts the copies of the run's first tiles. All arguments outlive the screen. stages: the warp's.
  __device__ LowBitScreen(const Step& p, const Unit& unit, const Ranges& ranges, const Run& run,
                          const HeldQueries<T, kDim>& q, unsigned char* stages, int lane)
      : p_(p), unit_(unit), ranges_(ranges), run_(run), stages_(stages), lane_(lane), q_({q, lane}, lane) {
    layout_ = {p.cache.page_size, kDim, kBits};
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) load(i, stages_ + i * kStageBytes, page_of(i));
    page_ahead_ = page_of(kStages);
  }

  // What turns the upper scores of a lane's rows into <q, k>, and back.
  __device__ const float (&unit() const)[2] {
    return q_.restore;
  }
  __device__ const float (&from_unit() const)[2] {
    return q_.unit;
  }

  // Screens tiles [begin, end) of the run: calls take(chunk, key, upper) for each 16 keys but the head, with
  // the chunk's number in the run, the lane's key g, and upper scores as d of mma.m16n8k16. Calls follow one
  // another without a gap, from 0 on.
  template <class Take>
  __device__ __forceinline__ void screen(int begin, int end, const Take& take) {
    for (int i = begin; i < end; ++i) {
      arch::cp_async_wait<kStages - 1>();
      __syncwarp();
      unsigned char* const stage = stages_ + i % kStages * kStageBytes;
      if (page_of(i) >= 0) screen_tile(i, stage, take);
      __syncwarp();  // the load overwrites the stage
      load(i + kStages, stage, page_ahead_);
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
      const uint8_t* from =
          p_.cache.low_bit + (int64_t{page} * p_.cache.kv_heads + unit_.kv_head) * int64_t{layout_.bytes()};
      const int in_page = (run_.first + i) * ranges_.tile_keys & (p_.cache.page_size - 1);
      copy<4 * kDim>(stage, from, 4 * kDim);
      copy<2 * kTileKeys>(stage + kMarginsAt, from + layout_.margins_at() + 2 * in_page,
                          2 * ranges_.tile_keys);
      copy<kTileKeys / 16 * kChunkBytes>(stage + kCodesAt,
                                         from + layout_.codes_at() + in_page / 16 * kChunkBytes,
                                         ranges_.tile_keys / 16 * kChunkBytes);
    }
    arch::cp_async_commit();
  }

  // Screens a tile that has arrived.
  template <class Take>
  __device__ __forceinline__ void screen_tile(int tile, const unsigned char* stage, const Take& take) const {
    const int key = (run_.first + tile) * ranges_.tile_keys;
    // Fold the scales into the queries; <q, zero> is where each sum starts. Sums have two halves, so that
    // products wait for one another half as often. A lane's four words of zeros are one operand as they
    // stand: row g takes two of them, row g + 8 the others, and of each product one half counts.
    uint32_t q[kDim / 32][4];
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int w = 0; w < kDim / 32; ++w) {
      const auto* group = reinterpret_cast<const uint4*>(stage) + 4 * w + lane_ % 4;
      const uint4 scale = group[0], zero = group[kDim / 8];
      const auto& words = q_.words[w];
      q[w][0] = as_bits(__hmul2(as_half2(words[q_.at(0)]), as_half2(scale.x)));
      q[w][1] = as_bits(__hmul2(as_half2(words[q_.at(1)]), as_half2(scale.y)));
      q[w][2] = as_bits(__hmul2(as_half2(words[q_.at(2)]), as_half2(scale.z)));
      q[w][3] = as_bits(__hmul2(as_half2(words[q_.at(3)]), as_half2(scale.w)));
      arch::mma_m16n8k16<__half>(even, {zero.x, zero.y, zero.z, zero.w}, words[q_.at(0)], words[q_.at(2)]);
      arch::mma_m16n8k16<__half>(odd, {zero.x, zero.y, zero.z, zero.w}, words[q_.at(1)], words[q_.at(3)]);
    }
    float start[2][4] = {{even[0], even[1], even[0], even[1]}, {odd[2], odd[3], odd[2], odd[3]}};
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
    const auto* margins = reinterpret_cast<const uint16_t*>(stage + kMarginsAt) + lane_ / 4;
    for (int chunk = key == 0 ? 1 : 0; chunk < ranges_.tile_keys / 16;
         ++chunk) {  // the first 16 keys are head
      uint32_t codes[kDim * kBits / 64];
      const auto* from = reinterpret_cast<const uint4*>(stage + kCodesAt + chunk * kChunkBytes) + lane_;
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
#pragma unroll
      for (int i = 0; i < 4; ++i) d[i] = fmaf(q_.norm[i % 2], margin[i / 2], halves[0][i] + halves[1][i]);
      take(tile * (ranges_.tile_keys / 16) + chunk, key + 16 * chunk + lane_ / 4, d);
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
  unsigned char* stages_;
  int lane_;
  int page_ahead_ = -1;  // of the next tile to be loaded
  LowBitLayout layout_{};
  ScreenQueries<T, kDim, kBits> q_;
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
