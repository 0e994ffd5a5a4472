// Backward's dense products on the CPU (simt/simt.h), for entmax_backward_simt_test.cpp: in the place of
// dense.cpp, which encodes TMA's maps and launches kernels on a GPU.

#include <algorithm>

// One instance for all threads of a block, which are fibers of one thread.
#undef __shared__
#define __shared__ __thread

namespace splash::gpu::entmax::backward {
__thread unsigned char dynamic[227 * 1024] __attribute__((aligned(1024)));  // shared memory of a block
}

#include "gpu/entmax/backward/dense/gather.cu"
#include "gpu/entmax/backward/dense/keys.cuh"
#include "gpu/entmax/backward/dense/queries.cuh"

namespace splash::gpu::entmax::backward {

// As dense.cpp launches them, by two blocks.
template <int kPanels, class Kernel>
void run_pairs(const BackwardProblem& problem, int64_t heads, int64_t length, const void* first,
               const void* second, int together, const Kernel& kernel) {
  using Tiles = PairTiles<kPanels>;
  static_assert(sizeof(Tiles) <= sizeof dynamic);
  BackwardProblem p = problem;
  p.dense.heads_together = together;
  const auto map_of = [&](const void* data) {
    return arch::TensorOnCpu{.data = static_cast<const uint16_t*>(data),
                             .heads = static_cast<int>(heads),
                             .length = static_cast<int>(length),
                             .dim = static_cast<int>(p.head_dim),
                             .tile_rows = Tiles::kParts * kDenseTile}
        .map();
  };
  const CUtensorMap maps[] = {map_of(first), map_of(second)};
  simt::poison_shared_memory(dynamic);
  simt::run(2, Tiles::kThreads, ++order, [&] { kernel(p, maps[0], maps[1]); });
}

// use.operator()<T, kPanels, kRanges>()
template <class Use>
void for_pairs(const BackwardProblem& p, Dtype dtype, const Use& use) {
  const auto of_type = [&]<class T>() {
    const bool ranges = p.dense.has_ranges();
    if (p.head_dim <= 64)
      ranges ? use.template operator()<T, 1, true>() : use.template operator()<T, 1, false>();
    else
      ranges ? use.template operator()<T, 2, true>() : use.template operator()<T, 2, false>();
  };
  dtype == Dtype::bf16 ? of_type.template operator()<__nv_bfloat16>() : of_type.template operator()<__half>();
}

void compute_dense_rows(const BackwardProblem& p, Dtype dtype, StreamHandle stream) {
  const int64_t key_heads = p.rows / p.q_len / p.group;
  gather_dense(p, stream);
  for_pairs(p, dtype, [&]<class T, int kPanels, bool kRanges>() {
    run_pairs<kPanels>(p, key_heads, p.kv_len, p.k, p.v, static_cast<int>(p.group),
                       dense_queries<T, kPanels, true, kRanges>);
  });
}
void compute_dense_columns(const BackwardProblem& p, Dtype dtype, StreamHandle /*stream*/) {
  const int64_t heads = p.rows / p.q_len, rows = int64_t{p.dense.tiles} * kDenseTile;
  for_pairs(p, dtype, [&]<class T, int kPanels, bool kRanges>() {
    run_pairs<kPanels>(p, heads, rows, p.dense.q, p.dense.d_out, 1, dense_keys<T, kPanels, kRanges>);
  });
}

}  // namespace splash::gpu::entmax::backward
