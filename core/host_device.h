#pragma once
// For what kernels share with the CPU, where it is tested. Compiles without nvcc.

#ifdef __CUDACC__
#define SPLASH_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SPLASH_HOST_DEVICE inline
#endif
