#pragma once
// Which rows a block of the forward kernel takes, which tiles of keys it visits, and in which order. Compiles
// without nvcc.

#include <cstdint>

#include "gpu/entmax/host_device.h"

namespace splash::gpu::entmax {

// How many heads' blocks run at a time: as many as have their keys and values in L2 together.
SPLASH_HOST_DEVICE constexpr int heads_together(int64_t elements_of_keys) {
  return elements_of_keys <= 1 << 17   ? 16
         : elements_of_keys <= 1 << 18 ? 8
         : elements_of_keys <= 1 << 20 ? 4
                                       : 2;
}

// Whose rows a block takes: of each head the last tile of queries first, which sees the most keys where the
// mask is causal; `together` heads at a time.
struct BlockPlace {
  int head, tile;

  SPLASH_HOST_DEVICE BlockPlace(int block, int tiles, int heads, int together) {
    const int first = block / (together * tiles) * together, rest = block - first * tiles;
    const int now = heads - first < together ? heads - first : together;
    head = first + rest % now;
    tile = tiles - 1 - rest / now;
  }
};

constexpr int kTilesAtOnce = 2;  // turns of a round

// Two passes over tiles of keys; a turn takes a tile, or none. The first pass finds bounds from samples: of
// each segment of keys that all rows of a block see those with the largest norms (pick.h), and of the keys
// behind the last tiles, for recent keys tend to matter most; no key twice. Where there are no such segments,
// samples are the last tiles. The second pass, over all tiles, the last first, finds what exceeds the bounds.
struct TileOrder {
  int count, picked, samples, screen;  // screen: the second pass's first turn
  uint32_t step;                       // segments from one that is sampled to the next, in 128ths

  // tiles: of `keys` keys each that a row of the block sees; segments: that all see, of `of_segment` keys;
  // most_sampled: keys that the first pass takes, some more to fill a round; 0: there is none.
  SPLASH_HOST_DEVICE TileOrder(int tiles, int keys, int segments, int of_segment, int most_sampled)
      : count(tiles), picked(most_sampled > 0 ? segments : 0), step(0) {
    const int most = most_sampled / keys, rest = tiles - segments * (of_segment / keys);
    if (picked > most) picked = most;
    if (picked > 1) step = (static_cast<uint32_t>(segments - 1) << 7) / static_cast<uint32_t>(picked - 1);
    const int recent =
        picked > 0 ? kTilesAtOnce - picked % kTilesAtOnce : most;  // one, or what fills a round
    samples = picked + (rest < recent ? rest : recent);
    screen = rounds(samples) * kTilesAtOnce;
  }
  SPLASH_HOST_DEVICE int turns() const { return screen + rounds(count) * kTilesAtOnce; }

  SPLASH_HOST_DEVICE bool is_picked(int turn) const { return turn < picked; }
  // The segment whose picked keys such a turn takes.
  SPLASH_HOST_DEVICE int segment(int turn) const {
    return static_cast<int>((static_cast<uint32_t>(turn) * step + 64) >> 7);
  }
  // The tile that another turn of the first pass takes, and one of the second; below 0: none.
  SPLASH_HOST_DEVICE int recent(int turn) const { return turn < samples ? count - 1 - (turn - picked) : -1; }
  SPLASH_HOST_DEVICE int screened(int turn) const { return count - 1 - (turn - screen); }

 private:
  static SPLASH_HOST_DEVICE int rounds(int tiles) { return (tiles + kTilesAtOnce - 1) / kTilesAtOnce; }
};

}  // namespace splash::gpu::entmax
