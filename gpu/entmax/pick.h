#pragma once
// Which keys the screen samples first: of each segment those with the largest norms, for they have the most
// large scores, whatever the queries. tau of a sample bounds tau of all from below, whichever keys it holds;
// the more of a row's support it holds, the fewer pairs the screen lists. Compiles without nvcc.
//
// A segment is as many keys as have a tile of picks; of each kErrorKeys of it equally many are picked, so
// that a block that has them at hand need not know of others (prepare_kernel.cuh).
//
// Of 16k Gaussian keys of 64 dimensions, the top eighth by norm holds half of a row's support (variance 6), a
// random eighth an eighth.

#include <cstdint>

#include "gpu/entmax/host_device.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

// The keys of a segment, for a problem with so many: 0 where all are sampled, else such that the picks of all
// segments are as many as a block samples.
constexpr int pick_segment(int64_t kv_len, int picks, int sampled_keys) {
  if (kv_len <= sampled_keys) return 0;
  int segment = 256;
  while (segment < 2048 && segment * int64_t{sampled_keys} < kv_len * picks) segment *= 2;
  return segment;
}

// Of each kErrorKeys of a segment, how many.
SPLASH_HOST_DEVICE constexpr int picks_of_block(int picks, int segment) {
  return picks * kErrorKeys / segment;
}

}  // namespace splash::gpu::entmax
