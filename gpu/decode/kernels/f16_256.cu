#include "gpu/decode/kernels.cuh"

template struct splash::gpu::decode::Kernels<__half, 256>;
