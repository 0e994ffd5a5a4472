#include "gpu/entmax/dense_table.cuh"

namespace splash::gpu::entmax {

template DenseKernel dense_kernel_of<__nv_bfloat16>(int64_t head_dim);

}  // namespace splash::gpu::entmax
