#pragma once
// The low-bit copy of a page of keys, with which decode screens keys: 4 or 8 bits per channel and key, a
// scale and a zero point per channel, and one margin per key. A copy belongs to the page: neither alpha nor
// the scale of the scores enters. Compiles without nvcc; the CPU reference and the kernels share it.
//
// A key k is stored as k^ = zero + scale * code, and its margin is such that for every query q the score of
// the screen differs from the score of k by at most |q| margin. The screen folds the scales into the query,
// in float16 (q' = q scale), and sums q' code and q zero with a tensor core. The margin bounds, of that:
//   |k - k^|                      the rounding of the key,
//   2^-11 |k^ - zero|             the rounding of q', and 2^-31 (4 bits: 2^-27, where half the channels are
//   divided by
//                                 16) per unit of code where q' is subnormal,
//   2^-16 (|zero| + |k^ - zero| + |k|), at 4 bits also 2^-16 24 |scale|   float32 sums of both the screen and
//   the exact
//                                 score, and q's own rounding to float16 after its largest element is scaled
//                                 to [64, 128).
//
// Bytes of a page: scales (float16) [head_dim], zero points (float16) [head_dim], margins (bfloat16)
// [page_size], codes. Codes are grouped by 16 keys, in the order in which the 32 lanes of a warp load 16
// bytes each for mma.m16n8k16: lane 4 g + t holds, of keys g and g + 8, the channels 8 (4 w + t) ... + 7 for
// w = 0 ... head_dim / 32 - 1.

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace splash {

// Bits of the nearest float16, ties to even.
SPLASH_HOST_DEVICE uint16_t half_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
  if (size > 0x7F800000u) return 0x7E00;
  if (size >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (size < 0x38800000u) {  // subnormal: 0.5 has steps of 2^-24
    const float shifted = std::bit_cast<float>(size) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = size + 0xFFFu + (size >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

SPLASH_HOST_DEVICE float float_of_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, size = half & 0x7FFFu;
  if (size >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (size & 0x3FFu) << 13);
  if (size < 0x400u)
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(size) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((size << 13) + 0x38000000u));
}

// Bits of the least bfloat16 that is not below x >= 0; NaN stays NaN.
SPLASH_HOST_DEVICE uint16_t bfloat16_above(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (bits > 0x7F800000u) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0xFFFFu) >> 16);
}

SPLASH_HOST_DEVICE float float_of_bfloat16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

struct LowBitLayout {
  int page_size, head_dim, bits;  // 16, 32, ..., 256 (a power of two); 64, 128, 256; 4 or 8

  SPLASH_HOST_DEVICE int zeros_at() const { return 2 * head_dim; }
  SPLASH_HOST_DEVICE int margins_at() const { return 4 * head_dim; }
  SPLASH_HOST_DEVICE int codes_at() const { return 4 * head_dim + 2 * page_size; }
  SPLASH_HOST_DEVICE int bytes() const {
    return codes_at() + page_size * head_dim * bits / 8;
  }  // a multiple of 16

  // Where the codes of a key's channels 8 group ... + 7 stand: `bits` bytes.
  SPLASH_HOST_DEVICE int group_at(int key, int group) const {
    const int lane = 4 * (key % 8) + group % 4;
    const int byte = (key % 16 / 8 * (head_dim / 32) + group / 4) * bits;  // of the lane's
    return codes_at() + key / 16 * (2 * head_dim * bits) + (byte / 16 * 32 + lane) * 16 + byte % 16;
  }
};

// Where the code of channel c of a group (0 ... 7) stands in the group's word of 4-bit codes. The kernel
// masks two codes at a time, 16 bits apart: they are neighbours.
SPLASH_HOST_DEVICE int nibble_of(int c) {
  return c / 2 + 4 * (c % 2);
}

// How one channel of a page is stored. Codes lie in [-8, 7] or [-128, 127] and are stored as code + 8 or +
// 128.
struct ChannelCode {
  float scale = 0, zero = 0;  // float16 values

  ChannelCode() = default;
  // low, high: the least and the largest value among the page's keys. usable: false where float16 does not
  // hold the channel, or a key is not finite; then no key of the page can be screened.
  SPLASH_HOST_DEVICE ChannelCode(float low, float high, int bits, bool& usable) {
    const float steps = static_cast<float>((1 << bits) - 1);
    const float step = float_of_half(half_bits((high - low) / steps));
    const float middle = float_of_half(half_bits(0.5f * low + 0.5f * high + 0.5f * step));
    if (!(step <= 256) || !(std::fabs(middle) < 60000)) {
      usable = false;
      return;
    }
    scale = step;
    zero = middle;
  }

  SPLASH_HOST_DEVICE int code(float key, int bits) const {
    if (!(scale > 0)) return 0;
    const float half_range = static_cast<float>(1 << (bits - 1));
    const float code = std::rint((key - zero) / scale);
    return static_cast<int>(code < -half_range ? -half_range : code > half_range - 1 ? half_range - 1 : code);
  }
};

// The squares that a key's margin is made of, summed over its channels.
struct MarginSums {
  float residual = 0, deviation = 0, key = 0;  // |k - k^|^2, |k^ - zero|^2, |k|^2
  float zero = 0, scale = 0;                   // |zero|^2, |scale|^2

  SPLASH_HOST_DEVICE void add(float value, const ChannelCode& channel, int code) {
    const float moved = channel.scale * static_cast<float>(code);  // exact: 11 bits times 8
    const float rest = value - channel.zero - moved;
    // Each subtraction rounds by 2^-24 of its result; 2^-16 |k| + ... of margin() covers that.
    residual += rest * rest;
    deviation += moved * moved;
    key += value * value;
    zero += channel.zero * channel.zero;
    scale += channel.scale * channel.scale;
  }

  SPLASH_HOST_DEVICE float margin(int head_dim, int bits) const {
    const float d = std::sqrt(deviation);
    const float stored =
        bits == 4 ? 24 * std::sqrt(scale) : 0.0f;  // codes are summed as 0 ... 15, then 8 is taken off
    const float sums = std::sqrt(zero) + d + stored + std::sqrt(key);
    const float sum = std::sqrt(residual) + 0x1p-11f * d + 0x1p-16f * sums +
                      static_cast<float>(head_dim << (bits - 1)) * (bits == 4 ? 0x1p-27f : 0x1p-31f);
    return sum * (1 + 0x1p-16f);
  }
};

}  // namespace splash
