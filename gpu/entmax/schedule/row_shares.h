#pragma once
// How rows that a kernel before has listed (ForwardProblem::rows) are shared out among blocks. Compiles
// without nvcc.

#include "core/host_device.h"

namespace splash::gpu::entmax {

// How many listed rows of a head a block takes at once: a multiple of `least`, up to `most`, which is one,
// too. As few as keep all SMs busy, because a block passes over all keys however few its rows are; but so
// many that the head's `blocks` take all of its `count` rows, where blocks * most are enough. all: rows of
// all heads.
SPLASH_HOST_DEVICE int rows_per_block(int all, int count, int blocks, int least, int most) {
  constexpr int kBlocks = 128;  // about as many as an H100 or H200 has SMs
  const int share = all / (least * kBlocks), needed = (count + least * blocks - 1) / (least * blocks);
  const int rows = least * (share > needed ? share : needed > 1 ? needed : 1);
  return rows < most ? rows : most;
}

}  // namespace splash::gpu::entmax
