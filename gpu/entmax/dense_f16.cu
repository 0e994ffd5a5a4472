#include "gpu/entmax/dense_table.cuh"

namespace splash::gpu::entmax {

template DenseKernel dense_kernel_of<__half>(int64_t head_dim);

}  // namespace splash::gpu::entmax
