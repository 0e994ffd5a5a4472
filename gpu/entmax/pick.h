#pragma once
// Which keys the screen samples first: of each segment those with the largest norms, for they have the most
// large scores, whatever the queries. tau of a sample bounds tau of all from below, whichever keys it holds;
// the more of a row's support it holds, the fewer pairs the screen lists. Compiles without nvcc.
//
// Of 16k Gaussian keys of 64 dimensions, the top eighth by norm holds half of a row's support (variance 6), a
// random eighth an eighth. head_dim must be a multiple of 8.

#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"
#include "gpu/entmax/tile_order.h"

namespace splash::gpu::entmax {

// The keys of a segment, for a problem with so many: 0 where all are sampled, else such that the picks of all
// segments are as many as a block samples.
constexpr int pick_segment(int64_t kv_len, int picks) {
  if (kv_len <= kMostSampledKeys) return 0;
  int segment = 256;
  while (segment < 2048 && segment * int64_t{kMostSampledKeys} < kv_len * picks) segment *= 2;
  return segment;
}

// Writes problem.picked from problem.squares and the keys in float16: `picks` (64 or 128) keys of each whole
// segment.
void pick_keys(const Problem& problem, int picks, StreamHandle stream);

}  // namespace splash::gpu::entmax
