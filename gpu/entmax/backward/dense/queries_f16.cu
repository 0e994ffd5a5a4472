#include "gpu/entmax/backward/dense/queries.cuh"

namespace splash::gpu::entmax::backward {

template DenseKernel dense_queries_of<__half, false>(uint32_t head_dim, bool with_alpha);

}  // namespace splash::gpu::entmax::backward
