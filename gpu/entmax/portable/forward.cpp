// Launches of the portable path.

#include <string>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda_check.h"
#include "gpu/entmax/portable/problem.h"
#include "gpu/entmax/schedule/gather.h"

namespace splash::gpu::entmax::portable {

template <class T>
Kernel kernel_of(int64_t head_dim, bool streams);
extern template Kernel kernel_of<__nv_bfloat16>(int64_t, bool);
extern template Kernel kernel_of<__half>(int64_t, bool);
extern template Kernel kernel_of<float>(int64_t, bool);

namespace {

Kernel kernel_for(Dtype dtype, int64_t head_dim, bool streams) {
  return dtype == Dtype::bf16  ? kernel_of<__nv_bfloat16>(head_dim, streams)
         : dtype == Dtype::f16 ? kernel_of<__half>(head_dim, streams)
                               : kernel_of<float>(head_dim, streams);
}

void launch(const char* name, const Kernel& kernel, const AttentionShape& shape, PortableProblem p,
            StreamHandle stream) {
  check_cuda(
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
      "ask for shared memory");
  void* arguments[] = {&p};
  check_cuda(cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(blocks_of(kernel, shape))),
                              dim3(static_cast<unsigned>(kernel.threads)), arguments,
                              static_cast<size_t>(kernel.shared_bytes), stream),
             std::string("launch ") + name);
}

}  // namespace

Kernel screen_kernel_of(Dtype dtype, int64_t head_dim) {
  return kernel_for(dtype, head_dim, false);
}
Kernel stream_kernel_of(Dtype dtype, int64_t head_dim) {
  return kernel_for(dtype, head_dim, true);
}

int64_t blocks_of(const Kernel& kernel, const AttentionShape& s) {
  return s.batch * s.q_heads * ceil_div(s.q_len, kernel.queries);
}

void enqueue(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args, const RowList& rows) {
  const AttentionShape& s = spec.shape;
  const PortableWorkspace workspace(s);
  const auto at = [&](int64_t offset) {
    return static_cast<void*>(static_cast<char*>(args.workspace) + offset);
  };
  PortableProblem p = portable::problem_of(spec, args);
  p.broad_masks = static_cast<uint32_t*>(at(workspace.masks));
  p.rows = rows;
  if (rows.queries != nullptr) {  // bits of other rows
    check_cuda(cudaMemsetAsync(p.broad_masks, 0, static_cast<size_t>(workspace.queries - workspace.masks),
                               args.stream),
               "clear the masks of rows");
  }
  launch("screen_kernel", screen_kernel_of(dtype, s.head_dim), s, p, args.stream);
  auto* const queries = static_cast<int*>(at(workspace.queries));
  auto* const counts = static_cast<int*>(at(workspace.counts));
  gather_rows(p, {.masks = p.broad_masks, .queries = queries, .counts = counts}, args.stream);
  p.rows = {queries, counts};
  launch("stream_kernel", stream_kernel_of(dtype, s.head_dim), s, p, args.stream);
  tell_entries(args.support, args.notice, args.stream);
}

}  // namespace splash::gpu::entmax::portable
