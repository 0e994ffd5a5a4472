#include "gpu/decode/kernels.cuh"

template struct splash::gpu::decode::Kernels<__nv_bfloat16, 128>;
