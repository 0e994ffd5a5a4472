#pragma once
// Which rows a block of a kernel over rows takes. Compiles without nvcc.

#include <cstdint>

#include "core/host_device.h"

namespace splash::gpu::entmax {

// How many heads' blocks run together: all of as many key heads as have keys and values that fit in L2
// together. group: heads per key head.
SPLASH_HOST_DEVICE constexpr int heads_together(int64_t elements_of_keys, int64_t group) {
  const int key_heads = elements_of_keys <= 1 << 17   ? 16
                        : elements_of_keys <= 1 << 18 ? 8
                        : elements_of_keys <= 1 << 20 ? 4
                                                      : 2;
  return key_heads * static_cast<int>(group);
}

// The block's head and tile of queries. Consecutive blocks work through `together` heads at a time, the last
// tiles first: under a causal mask the last tile sees the most keys.
struct BlockPlace {
  int head, tile;

  SPLASH_HOST_DEVICE BlockPlace(int block, int tiles, int heads, int together) {
    const int first = block / (together * tiles) * together, rest = block - first * tiles;
    const int now = heads - first < together ? heads - first : together;
    head = first + rest % now;
    tile = tiles - 1 - rest / now;
  }
};

}  // namespace splash::gpu::entmax
