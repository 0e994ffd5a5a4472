#include "gpu/entmax/portable/kernels.cuh"

namespace splash::gpu::entmax::portable {

template Kernel kernel_of<__half>(int64_t, bool);

}  // namespace splash::gpu::entmax::portable
