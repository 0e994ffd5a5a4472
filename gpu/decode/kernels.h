#pragma once
// The kernels of decode for one element type and head dimension. Compiles without nvcc.

#include <functional>

#include "gpu/decode/problem.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::decode {

// Called after each launch with the kernel's name, for timing.
using Launched = std::function<void(const char*)>;

template <class T, int kDim>
struct Kernels {
  static int step_bytes(int bits);              // shared memory of a block, but for dynamic_bytes()
  static int short_bytes(int bits, int warps);  // the same of a short step; 0 without copies
  static int most_team();      // blocks that a unit may have on the current device, as a cluster
  static int most_together();  // the same, where they are none
  static void step(const Step& p, StreamHandle stream, const Launched& launched);
  static void fill(const Cache& cache, const PageTable& table, const int32_t* from_lengths, int pages_each,
                   StreamHandle stream);
  static void append(const Cache& cache, const PageTable& table, const RowTensor& keys,
                     const RowTensor& values, int tokens, StreamHandle stream);
};

}  // namespace splash::gpu::decode
