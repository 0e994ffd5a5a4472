#pragma once
// Which tiles of keys a block of the forward kernel visits, and in which order. Compiles without nvcc.

#include "gpu/entmax/host_device.h"

namespace splash::gpu::entmax {

constexpr int kMostSamples = 20;  // tiles that a block samples

// A pass over some tiles, spread over all, finds bounds: it begins with the first, to which many models
// attend, and the last, for recent keys tend to matter most, and goes on from both ends. A pass over all of
// them, the last first, finds what exceeds the bounds.
struct TileOrder {
  int count, samples;  // samples: an even number

  explicit SPLASH_HOST_DEVICE TileOrder(int tiles) : count(tiles), samples(tiles & ~1) {
    if (samples > kMostSamples) samples = kMostSamples;
    if (tiles == 1) samples = 2;
  }
  SPLASH_HOST_DEVICE int turns() const { return samples + count; }
  SPLASH_HOST_DEVICE int sample(int turn) const {
    const int at = turn % 2 == 0 ? turn / 2 : samples - 1 - turn / 2;
    return (count - 1) * at / (samples - 1);
  }
  SPLASH_HOST_DEVICE int tile(int turn) const {
    return turn < samples ? sample(turn) : count - 1 - (turn - samples);
  }
};

}  // namespace splash::gpu::entmax
