#pragma once
// Which keys the screen samples first: the keys of each segment with the largest norms. They have the most
// large scores, whatever the queries. tau of any sample bounds tau of all keys from below; the more of a
// row's support the sample holds, the fewer pairs the screen lists. Compiles without nvcc.
//
// High-norm keys of one segment fill one tile. Each block of kErrorKeys keys gives equally many, so a block
// of the preparing kernel chooses its own without asking others (prepare_kernel.cuh).
//
// Of 16k Gaussian keys of 64 dimensions, the top eighth by norm holds half of a row's support (variance 6), a
// random eighth an eighth.

#include <cstdint>

#include "core/host_device.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax::hopper {

// Keys per segment, such that the high-norm keys of all segments that a row sees are as many as a block
// samples; 0 where a block samples all keys. visible: the most keys that a row sees. per_segment: high-norm
// keys of a segment, one tile.
constexpr int high_norm_segment(int64_t visible, int per_segment, int sampled_keys) {
  if (visible <= sampled_keys) return 0;
  int segment = 256;
  while (segment < 2048 && segment * int64_t{sampled_keys} < visible * per_segment) segment *= 2;
  return segment;
}

// High-norm keys among kErrorKeys keys of a segment.
SPLASH_HOST_DEVICE constexpr int high_norm_per_block(int per_segment, int segment) {
  return per_segment * kErrorKeys / segment;
}

}  // namespace splash::gpu::entmax::hopper
