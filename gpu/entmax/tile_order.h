#pragma once
// Which rows a block of the forward kernel takes, which tiles of keys it visits, and in which order. Compiles
// without nvcc.

#include <cstdint>

#include "gpu/entmax/host_device.h"

namespace splash::gpu::entmax {

// Whose rows a block takes: of each head the last tile of queries first, which sees the most keys where the
// mask is causal; the heads eight at a time, so that L2 holds their keys and values.
struct BlockPlace {
  static constexpr int kHeads = 8;
  int head, tile;

  SPLASH_HOST_DEVICE BlockPlace(int block, int tiles, int heads) {
    const int first = block / (kHeads * tiles) * kHeads, rest = block - first * tiles;
    const int together = heads - first < kHeads ? heads - first : kHeads;
    head = first + rest % together;
    tile = tiles - 1 - rest / together;
  }
};

constexpr int kMostSamples = 20;  // tiles that a block samples

// A pass over some tiles, spread over all, finds bounds: it begins with the first, to which many models
// attend, and the last, for recent keys tend to matter most, and goes on from both ends. A pass over all of
// them, the last first, finds what exceeds the bounds.
struct TileOrder {
  int count, samples;  // samples: an even number
  uint32_t step;       // tiles from one sample to the next, in 128ths

  explicit SPLASH_HOST_DEVICE TileOrder(int tiles) : count(tiles), samples(tiles & ~1), step(0) {
    if (samples > kMostSamples) samples = kMostSamples;
    if (tiles == 1) samples = 2;
    if (tiles > 1) step = (static_cast<uint32_t>(tiles - 1) << 7) / static_cast<uint32_t>(samples - 1);
  }
  SPLASH_HOST_DEVICE int turns() const { return samples + count; }
  SPLASH_HOST_DEVICE int sample(int turn) const {
    const int at = turn % 2 == 0 ? turn / 2 : samples - 1 - turn / 2;
    return static_cast<int>((static_cast<uint32_t>(at) * step + 64) >> 7);
  }
  SPLASH_HOST_DEVICE int screened(int turn) const { return turns() - 1 - turn; }
  SPLASH_HOST_DEVICE int tile(int turn) const { return turn < samples ? sample(turn) : screened(turn); }
};

}  // namespace splash::gpu::entmax
