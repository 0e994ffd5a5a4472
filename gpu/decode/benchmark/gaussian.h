#pragma once
// Gaussian numbers in device memory. Compiles without nvcc.

#include <cstdint>

#include "core/dtype.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::decode {

// Enqueues count numbers N(0, deviation^2) of stream `seed` (core/random.h), rounded to bf16 or f16.
void fill_gaussian(void* to, Dtype dtype, int64_t count, double deviation, uint64_t seed,
                   StreamHandle stream);

// The same in float8 (e4m3fn), 448 at most.
void fill_gaussian_fp8(void* to, int64_t count, double deviation, uint64_t seed, StreamHandle stream);

}  // namespace splash::gpu::decode
