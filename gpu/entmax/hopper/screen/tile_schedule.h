#pragma once
// Which tiles of keys a block of the screening kernel visits, and in which order. Compiles without nvcc.

#include <cstdint>

#include "core/host_device.h"

namespace splash::gpu::entmax::hopper {

constexpr int kTilesPerIteration = 2;  // whose products are in flight together

// Some tiles or segments that follow one another: from begin to below end; none where end is at most begin.
struct Span {
  int begin, end;
};

// The order of two passes over tiles of keys. Each position of the schedule takes one tile, or none where an
// iteration has to be filled, and one stage of the ring.
//
// The sampling pass finds bounds. It takes no key twice, and two sorts of keys:
//   near   the first tile, where many models have a sink, and the last tiles, for recent keys tend to matter
//          most: kNearKeys in all, or kNearOfFew where there are few keys: there a product saved is worth
//          more than a better bound.
//   far    of each segment of keys that all rows of the block see, those with the largest norms
//          (prepare/high_norm.h); without segments, the tiles before the last ones. The block may leave these
//          out.
//
// The screening pass takes all tiles, the last one first, and finds the pairs above the bounds.
struct TileSchedule {
  static constexpr int kNearKeys = 768, kNearOfFew = 512, kFewKeys = 2048;

  int first_tile, tiles;  // of the screening pass
  int near_positions;     // the first positions
  int far_begin;          // the first position of far keys
  int far_positions;      // that take a tile
  int first_segment;      // of those that are sampled; below 0: there are none
  int screen_begin;       // the screening pass's first position
  uint32_t stride;        // segments from one that is sampled to the next, in 128ths

  // seen: tiles that a row of the block sees, of `tile_keys` keys each. whole: segments that all its rows see
  // whole, of `segment_keys` keys; segment_keys 0: there are none. most_sampled: keys that the sampling pass
  // takes, some more to fill an iteration; 0: there is no such pass.
  SPLASH_HOST_DEVICE TileSchedule(Span seen, int tile_keys, Span whole, int segment_keys, int most_sampled)
      : first_tile(seen.begin),
        tiles(seen.end > seen.begin ? seen.end - seen.begin : 0),
        first_segment(-1),
        stride(0) {
    const int near_keys = tiles * tile_keys <= kFewKeys ? kNearOfFew : kNearKeys;
    const int most = most_sampled / tile_keys, near = smaller(most, near_keys / tile_keys);
    near_positions = smaller(tiles, near);
    far_begin = whole_iterations(near_positions);
    int far = tiles - near_positions;
    if (segment_keys > 0) {
      // Segments that the near tiles have no part in.
      const int per_segment = segment_keys / tile_keys;
      const int begin = larger(whole.begin, first_tile / per_segment + 1);
      const int end = smaller(whole.end, (last_tile() + 2 - near_positions) / per_segment);
      far = larger(end - begin, 0);
      first_segment = begin;
    }
    far_positions = smaller(most - near_positions, far);
    if (segment_keys > 0 && far_positions > 1)
      stride = (static_cast<uint32_t>(far - 1) << 7) / static_cast<uint32_t>(far_positions - 1);
    screen_begin = far_begin + whole_iterations(far_positions);
  }
  SPLASH_HOST_DEVICE int length() const { return screen_begin + whole_iterations(tiles); }

  SPLASH_HOST_DEVICE bool is_high_norm(int position) const {
    return first_segment >= 0 && position >= far_begin && position < far_begin + far_positions;
  }
  // The segment whose high-norm keys such a position takes.
  SPLASH_HOST_DEVICE int segment(int position) const {
    return first_segment + static_cast<int>((static_cast<uint32_t>(position - far_begin) * stride + 64) >> 7);
  }
  // The tile that another position of the sampling pass takes, and one of the screening pass; below 0: none.
  SPLASH_HOST_DEVICE int sampled(int position) const {
    if (position < near_positions)
      return position == 0 ? first_tile : last_tile() + 1 - near_positions + position;
    const int far = position - far_begin;
    return far >= 0 && far < far_positions ? last_tile() + 1 - near_positions - far : -1;
  }
  SPLASH_HOST_DEVICE int screened(int position) const {
    const int tile = last_tile() - (position - screen_begin);
    return tile >= first_tile ? tile : -1;
  }
  SPLASH_HOST_DEVICE int last_tile() const { return first_tile + tiles - 1; }

 private:
  static SPLASH_HOST_DEVICE int whole_iterations(int positions) {
    return (positions + kTilesPerIteration - 1) / kTilesPerIteration * kTilesPerIteration;
  }
  static SPLASH_HOST_DEVICE int smaller(int a, int b) { return a < b ? a : b; }
  static SPLASH_HOST_DEVICE int larger(int a, int b) { return a > b ? a : b; }
};

}  // namespace splash::gpu::entmax::hopper
