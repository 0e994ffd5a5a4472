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
    KeyChunk<T, kDim> next[kAhead];
    bool is_hole[kAhead];
    int following = first_key, page = first_key < end_key ? unit_.page(p_, first_key) : -1;
    const int second_tile = (first_key / tile_keys + 1) * tile_keys;
    int page_ahead = second_tile < end_key ? unit_.page(p_, second_tile) : -1;
    const auto load = [&](int j) {
      if (following >= end_key) return;
      next[j].load_from_page(p_, unit_, following, page, lane_);
      is_hole[j] = page < 0;
      following += 16;
      if (following % tile_keys != 0) return;
      page = page_ahead;
      if (following + tile_keys < end_key) page_ahead = unit_.page(p_, following + tile_keys);
    };
#pragma unroll
    for (int j = 0; j < kAhead; ++j) load(j);
#pragma unroll 1
    for (int first = first_key; first < end_key; first += 16 * kAhead) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int chunk = first + 16 * j;
        if (chunk >= end_key) break;
        const KeyChunk<T, kDim> now = next[j];
        const bool exists = !is_hole[j];
        load(j);
        float d[4];
        now.score(q_, d);
        if (exists) take((chunk - run_key) / 16, chunk + lane_ / 4, d);
      }
    }
  }

 private:
  static constexpr int kAhead = 2;  // chunks

  const Step& p_;
  const Unit& unit_;
  const Ranges& ranges_;
  const Run& run_;
  Queries<T, kDim> q_;
  int lane_;
  float unit_of_[2] = {1, 1};
};

}  // namespace splash::gpu::decode
