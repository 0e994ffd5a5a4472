#include "gpu/entmax/backward/dense/dense.h"

#include <algorithm>
#include <string>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/round.h"
#include "gpu/arch/tensor_map.h"
#include "gpu/entmax/backward/problem.h"
#include "gpu/entmax/schedule/launch.h"

namespace splash::gpu::entmax::backward {

template <class T, bool kRanges>
DenseKernel dense_queries_of(uint32_t head_dim, bool with_alpha);
template <class T, bool kRanges>
DenseKernel dense_keys_of(uint32_t head_dim);
extern template DenseKernel dense_queries_of<__nv_bfloat16, false>(uint32_t, bool);
extern template DenseKernel dense_queries_of<__nv_bfloat16, true>(uint32_t, bool);
extern template DenseKernel dense_queries_of<__half, false>(uint32_t, bool);
extern template DenseKernel dense_queries_of<__half, true>(uint32_t, bool);
extern template DenseKernel dense_keys_of<__nv_bfloat16, false>(uint32_t);
extern template DenseKernel dense_keys_of<__nv_bfloat16, true>(uint32_t);
extern template DenseKernel dense_keys_of<__half, false>(uint32_t);
extern template DenseKernel dense_keys_of<__half, true>(uint32_t);

namespace {

// use.operator()<T, kRanges>()
template <class Use>
DenseKernel for_kernel(Dtype dtype, bool ranges, const Use& use) {
  if (dtype == Dtype::bf16)
    return ranges ? use.template operator()<__nv_bfloat16, true>()
                  : use.template operator()<__nv_bfloat16, false>();
  return ranges ? use.template operator()<__half, true>() : use.template operator()<__half, false>();
}

}  // namespace

DenseKernel dense_queries_of(Dtype dtype, uint32_t head_dim, bool with_alpha, bool ranges) {
  return for_kernel(dtype, ranges, [&]<class T, bool kRanges>() {
    return dense_queries_of<T, kRanges>(head_dim, with_alpha);
  });
}
DenseKernel dense_keys_of(Dtype dtype, uint32_t head_dim, bool ranges) {
  return for_kernel(dtype, ranges,
                    [&]<class T, bool kRanges>() { return dense_keys_of<T, kRanges>(head_dim); });
}

namespace {

constexpr int64_t kBytesTogether = 40 << 20;  // of an H100's or H200's 50 MiB of L2

// As few groups of heads as have what they stream in L2, of about as many heads.
int heads_together(int64_t heads, int64_t bytes_of_head) {
  const int64_t groups = std::clamp<int64_t>(ceil_div(heads * bytes_of_head, kBytesTogether), 1, heads);
  return static_cast<int>(ceil_div(heads, groups));
}

// Launches one block per SM, at most `work`; the blocks take their work from a queue.
void launch(const std::string& name, const DenseKernel& kernel, int64_t work, int together,
            const BackwardProblem& problem, const CUtensorMap& first, const CUtensorMap& second,
            StreamHandle stream) {
  BackwardProblem p = problem;
  p.dense.heads_together = together;
  CUtensorMap maps[] = {first, second};
  void* arguments[] = {&p, &maps[0], &maps[1]};
  const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(work, multiprocessors())));
  entmax::launch(name, kernel.function, blocks, kernel.threads, kernel.shared_bytes, stream, arguments);
}

CUtensorMap map_of(const BackwardProblem& p, Dtype dtype, const void* data, int64_t heads, int64_t length,
                   const DenseKernel& kernel) {
  return arch::encode_tiles({.data = data,
                             .dtype = dtype,
                             .heads = heads,
                             .length = length,
                             .dim = p.head_dim,
                             .tile_rows = kernel.tile_rows,
                             .tile_columns = 64});
}

}  // namespace

void compute_dense_rows(const BackwardProblem& p, Dtype dtype, StreamHandle stream) {
  const int64_t heads = p.rows / p.q_len, key_heads = heads / p.group;
  const DenseKernel kernel = dense_queries_of(dtype, p.head_dim, p.d_alpha != nullptr, p.dense.has_ranges());
  const auto keys = [&](const void* data) { return map_of(p, dtype, data, key_heads, p.kv_len, kernel); };
  gather_dense(p, stream);
  const int together =
      static_cast<int>(p.group) * heads_together(key_heads, bytes_of(dtype) * 2 * p.kv_len * p.head_dim);
  launch("dense_queries", kernel, heads * ceil_div(p.q_len, kernel.rows), together, p, keys(p.k), keys(p.v),
         stream);
}

void compute_dense_columns(const BackwardProblem& p, Dtype dtype, StreamHandle stream) {
  const int64_t heads = p.rows / p.q_len, key_heads = heads / p.group;
  const DenseKernel kernel = dense_keys_of(dtype, p.head_dim, p.dense.has_ranges());
  const auto rows = [&](const void* data) {
    return map_of(p, dtype, data, heads, int64_t{p.dense.tiles} * kDenseTile, kernel);
  };
  const int together = heads_together(key_heads, bytes_of(dtype) * 2 * p.group * p.q_len * p.head_dim);
  launch("dense_keys", kernel, key_heads * ceil_div(p.kv_len, kernel.rows), together, p, rows(p.dense.q),
         rows(p.dense.d_out), stream);
}

}  // namespace splash::gpu::entmax::backward
