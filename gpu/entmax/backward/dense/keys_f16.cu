#include "gpu/entmax/backward/dense/keys.cuh"

namespace splash::gpu::entmax::backward {

template DenseKernel dense_keys_of<__half, false>(uint32_t head_dim);

}  // namespace splash::gpu::entmax::backward
