#include "gpu/entmax/hopper/dense/dense.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/round.h"
#include "gpu/arch/tensor_map.h"
#include "gpu/entmax/schedule/launch.h"

namespace splash::gpu::entmax::hopper {

template <class T, bool kRanges>
DenseKernel dense_kernel_of(int64_t head_dim);
extern template DenseKernel dense_kernel_of<__nv_bfloat16, false>(int64_t);
extern template DenseKernel dense_kernel_of<__nv_bfloat16, true>(int64_t);
extern template DenseKernel dense_kernel_of<__half, false>(int64_t);
extern template DenseKernel dense_kernel_of<__half, true>(int64_t);

DenseKernel dense_kernel_of(Dtype dtype, int64_t head_dim, bool ranges) {
  const auto of_type = [&]<class T>() {
    return ranges ? dense_kernel_of<T, true>(head_dim) : dense_kernel_of<T, false>(head_dim);
  };
  return dtype == Dtype::bf16 ? of_type.template operator()<__nv_bfloat16>()
                              : of_type.template operator()<__half>();
}

int64_t dense_blocks(int64_t heads, int64_t q_len, const DenseKernel& kernel, int multiprocessors) {
  return std::min<int64_t>(multiprocessors, heads * ceil_div(q_len, kernel.least_queries));
}

void launch_dense(const ForwardProblem& problem, Dtype dtype, StreamHandle stream) {
  const DenseKernel kernel = dense_kernel_of(dtype, problem.head_dim, problem.has_ranges());
  const auto map_of = [&](const void* data) {
    return arch::encode_tiles({.data = data,
                               .dtype = dtype,
                               .heads = problem.heads / problem.group,
                               .length = problem.kv_len,
                               .dim = problem.head_dim,
                               .tile_rows = kernel.keys,
                               .tile_columns = 64});
  };
  CUtensorMap k_map = map_of(problem.k), v_map = map_of(problem.v);
  ForwardProblem p = problem;
  void* arguments[] = {&p, &k_map, &v_map};
  const dim3 blocks(static_cast<unsigned>(dense_blocks(p.heads, p.q_len, kernel, multiprocessors())));
  launch("dense_kernel", kernel.function, blocks, kernel.threads, kernel.shared_bytes, stream, arguments);
}

}  // namespace splash::gpu::entmax::hopper
