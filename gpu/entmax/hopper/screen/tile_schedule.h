#pragma once
// Which tiles of keys a block of the screening kernel visits, and in which order. Compiles without nvcc.

#include <cstdint>

#include "gpu/entmax/math/host_device.h"

namespace splash::gpu::entmax::hopper {

constexpr int kTilesPerIteration = 2;  // whose products are in flight together

// Some tiles or segments that follow one another: from begin to below end; none where end is at most begin.
struct Span {
  int begin, end;
};

// The order of two passes over tiles of keys. Each position of the schedule takes one tile, or none where an
// iteration has to be filled, and one stage of the ring.
//
// The sampling pass finds bounds. From each segment of keys that all rows of the block see, it takes the keys
// with the largest norms (prepare/high_norm.h); of the keys behind these segments, it takes the last tiles,
// because recent keys tend to matter most. It takes no key twice. Without segments, the samples are the last
// tiles.
//
// The screening pass takes all tiles, the last one first, and finds the pairs above the bounds.
struct TileSchedule {
  int first_tile, tiles;    // of the screening pass
  int first_segment;        // that all rows of the block see
  int high_norm_positions;  // the first positions: each takes the high-norm keys of one segment
  int sample_positions;     // positions of the sampling pass that take a tile
  int screen_begin;         // the screening pass's first position
  uint32_t stride;          // segments from one that is sampled to the next, in 128ths

  // seen: tiles that a row of the block sees, of `tile_keys` keys each. whole: segments that all its rows see
  // whole, of `segment_keys` keys. most_sampled: keys that the sampling pass takes, some more to fill an
  // iteration; 0: there is no such pass.
  SPLASH_HOST_DEVICE TileSchedule(Span seen, int tile_keys, Span whole, int segment_keys, int most_sampled)
      : first_tile(seen.begin),
        tiles(seen.end > seen.begin ? seen.end - seen.begin : 0),
        first_segment(whole.begin),
        stride(0) {
    const int segments = whole.end > whole.begin ? whole.end - whole.begin : 0;
    const int behind = segments > 0 ? whole.end * (segment_keys / tile_keys) : first_tile;
    const int most = most_sampled / tile_keys, rest = first_tile + tiles - behind;
    high_norm_positions = most < segments ? most : segments;
    if (high_norm_positions > 1)
      stride = (static_cast<uint32_t>(segments - 1) << 7) / static_cast<uint32_t>(high_norm_positions - 1);
    const int recent =
        high_norm_positions > 0 ? kTilesPerIteration - high_norm_positions % kTilesPerIteration : most;
    sample_positions = high_norm_positions + (rest < recent ? rest : recent);
    screen_begin = iterations(sample_positions) * kTilesPerIteration;
  }
  SPLASH_HOST_DEVICE int length() const { return screen_begin + iterations(tiles) * kTilesPerIteration; }

  SPLASH_HOST_DEVICE bool is_high_norm(int position) const { return position < high_norm_positions; }
  // The segment whose high-norm keys such a position takes.
  SPLASH_HOST_DEVICE int segment(int position) const {
    return first_segment + static_cast<int>((static_cast<uint32_t>(position) * stride + 64) >> 7);
  }
  // The tile that another position of the sampling pass takes, and one of the screening pass; below 0: none.
  SPLASH_HOST_DEVICE int recent(int position) const {
    return position < sample_positions ? last_tile() - (position - high_norm_positions) : -1;
  }
  SPLASH_HOST_DEVICE int screened(int position) const {
    const int tile = last_tile() - (position - screen_begin);
    return tile >= first_tile ? tile : -1;
  }
  SPLASH_HOST_DEVICE int last_tile() const { return first_tile + tiles - 1; }

 private:
  static SPLASH_HOST_DEVICE int iterations(int positions) {
    return (positions + kTilesPerIteration - 1) / kTilesPerIteration;
  }
};

}  // namespace splash::gpu::entmax::hopper
