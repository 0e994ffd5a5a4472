#include "gpu/entmax/portable/kernels.cuh"

namespace splash::gpu::entmax::portable {

template Kernel kernel_of<__nv_bfloat16>(int64_t, bool);

}  // namespace splash::gpu::entmax::portable
