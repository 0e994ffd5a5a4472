#include "gpu/decode/kernels.cuh"

template struct splash::gpu::decode::Kernels<__nv_fp8_e4m3, 256>;
