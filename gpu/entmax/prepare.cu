#include "gpu/entmax/prepare.h"

#include "gpu/cuda_check.h"
#include "gpu/entmax/prepare_kernel.cuh"

namespace splash::gpu::entmax {
namespace {

template <class T>
void launch(const Problem& problem, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(problem.kv_len, kErrorKeys)),
                  static_cast<unsigned>(problem.heads / problem.group));
  if (problem.head_dim <= 64) {
    prepare_kernel<T, 8><<<grid, kPrepareThreads, 0, stream>>>(problem);
  } else if (problem.head_dim <= 128) {
    prepare_kernel<T, 16><<<grid, kPrepareThreads, 0, stream>>>(problem);
  } else {
    prepare_kernel<T, 32><<<grid, kPrepareThreads, 0, stream>>>(problem);
  }
  check_launch("prepare_kernel");
}

}  // namespace

void prepare_keys(const Problem& problem, Dtype dtype, StreamHandle stream) {
  if (dtype == Dtype::bf16) {
    launch<__nv_bfloat16>(problem, stream);
  } else {
    launch<__half>(problem, stream);
  }
}

}  // namespace splash::gpu::entmax
