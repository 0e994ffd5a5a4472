#include "gpu/entmax/hopper/dense/table.cuh"

namespace splash::gpu::entmax::hopper {

template DenseKernel dense_kernel_of<__half, false>(int64_t head_dim);

}  // namespace splash::gpu::entmax::hopper
