#pragma once
// How rows that a kernel before has listed (ForwardProblem::rows) are shared out among blocks, which take one
// share after another. Compiles without nvcc.

#include "core/host_device.h"

namespace splash::gpu::entmax {

// How many listed rows of a head a share has: a multiple of `least`, up to `most`, which is one, too. all:
// rows of all heads. A share passes over all keys however few its rows are, so it has many; but there are two
// a block, where rows suffice. Under a causal mask a head's first rows see few keys and its last ones all:
// with one share a block, most blocks would wait for those of the last rows.
SPLASH_HOST_DEVICE int rows_per_share(int all, int blocks, int least, int most) {
  const int rows = least * (all / (2 * least * blocks));
  return rows < least ? least : rows < most ? rows : most;
}

}  // namespace splash::gpu::entmax
