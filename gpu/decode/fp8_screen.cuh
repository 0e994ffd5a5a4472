#pragma once
// The screen of Fp8 caches (elements.cuh): keys are read whole, so its upper scores are the exact ones. A key
// has half the bytes that it has in 16 bits, so twice as many are on their way.

#include "gpu/decode/problem.h"
#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

template <class T, int kDim>
class Fp8Screen {
 public:
  static constexpr int kWarpBytes = 1;  // none, but an array has some

  __device__ Fp8Screen(const Step& p, const Unit& unit, const Ranges& ranges, const Run& run,
                       const HeldQueries<T, kDim>& q, unsigned char* /*stages*/, int lane)
      : p_(p), unit_(unit), ranges_(ranges), run_(run), q_(q, lane), lane_(lane) {}

  __device__ const float (&unit() const)[2] { return unit_of_; }
  __device__ const float (&from_unit() const)[2] { return unit_of_; }

  // As LowBitScreen's.
  template <class Take>
  __device__ __forceinline__ void screen(int begin, int end, const Take& take) const {
    if (begin >= end) return;
    const int tile_keys = ranges_.tile_keys, run_key = run_.first * tile_keys,
              first_key = max(run_key + begin * tile_keys, kHeadKeys), end_key = run_key + end * tile_keys;
    // Chunks of 16 keys, and the page of the tile after theirs, are on their way while others are scored.
    KeyChunk<T, kDim> next[kAhead] = {};
    bool exists[kAhead];
    int following = first_key, page = first_key < end_key ? unit_.page(p_, first_key) : -1;
    const int second_tile = (first_key / tile_keys + 1) * tile_keys, in_tile = tile_keys - 1;
    int page_ahead = second_tile < end_key ? unit_.page(p_, second_tile) : -1;
    // The lane's first key of the following chunk, if there is its page.
    const int64_t eight_keys = 8 * p_.cache.keys.token_stride;
    const auto first_of_page = [&] {
      return unit_.in_page<T>(p_, p_.cache.keys, page < 0 ? 0 : page, following + lane_ / 4);
    };
    const T* from = first_of_page();
    const auto load = [&](int j) {
      if (following >= end_key) return;
      exists[j] = page >= 0;
      if (exists[j]) next[j].load_both(from, from + eight_keys, lane_);
      from += 2 * eight_keys;
      following += 16;
      if ((following & in_tile) != 0) return;  // tiles are of 2^n keys
      page = page_ahead;
      from = first_of_page();
      if (following + tile_keys < end_key) page_ahead = unit_.page(p_, following + tile_keys);
    };
#pragma unroll
    for (int j = 0; j < kAhead; ++j) load(j);
    int chunk = (first_key - run_key) / 16;
#pragma unroll 1
    for (int first = first_key; first < end_key; first += 16 * kAhead) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j, ++chunk) {
        const int key = first + 16 * j;
        if (key >= end_key) break;
        const KeyChunk<T, kDim> now = next[j];
        const bool is_there = exists[j];
        load(j);
        float d[4];
        now.score(q_, d);
        if (is_there) take(chunk, key + lane_ / 4, d);
      }
    }
  }

 private:
  static constexpr int kAhead = 2;  // chunks; at head_dim 64 some registers spill, yet one takes longer

  const Step& p_;
  const Unit& unit_;
  const Ranges& ranges_;
  const Run& run_;
  Queries<T, kDim> q_;
  int lane_;
  float unit_of_[2] = {1, 1};
};

}  // namespace splash::gpu::decode
