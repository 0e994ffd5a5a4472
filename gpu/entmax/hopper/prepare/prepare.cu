#include "gpu/entmax/hopper/prepare/prepare.h"

#include "gpu/entmax/hopper/prepare/prepare_kernel.cuh"

namespace splash::gpu::entmax::hopper {
namespace {

template <class T>
void prepare(const ForwardProblem& problem, StreamHandle stream, const StoreBegin& begin) {
  const dim3 grid(static_cast<unsigned>(ceil_div(problem.kv_len, kErrorKeys) - problem.first_block),
                  static_cast<unsigned>(problem.heads / problem.group));
  if (problem.head_dim <= 64) {
    launch("prepare_kernel", prepare_kernel<T, 8>, grid, kPrepareThreads, stream, problem, begin);
  } else if (problem.head_dim <= 128) {
    launch("prepare_kernel", prepare_kernel<T, 16>, grid, kPrepareThreads, stream, problem, begin);
  } else {
    launch("prepare_kernel", prepare_kernel<T, 32>, grid, kPrepareThreads, stream, problem, begin);
  }
}

}  // namespace

void prepare_keys(const ForwardProblem& problem, Dtype dtype, StreamHandle stream, const StoreBegin& begin) {
  if (dtype == Dtype::bf16) {
    prepare<__nv_bfloat16>(problem, stream, begin);
  } else {
    prepare<__half>(problem, stream, begin);
  }
}

}  // namespace splash::gpu::entmax::hopper
