#include "gpu/entmax/hopper/screen/forward_table.cuh"

namespace splash::gpu::entmax::hopper {

template ForwardKernel forward_kernel_of<__nv_bfloat16, RowKeys::largest>(int64_t head_dim);

}  // namespace splash::gpu::entmax::hopper
