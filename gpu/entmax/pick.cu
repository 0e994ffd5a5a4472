#include "gpu/entmax/pick.h"

#include "gpu/entmax/pick_kernel.cuh"

namespace splash::gpu::entmax {
namespace {

template <int kSegment>
void pick(const Problem& problem, int picks, StreamHandle stream) {
  const dim3 blocks(static_cast<unsigned>(problem.kv_len / kSegment),
                    static_cast<unsigned>(problem.heads / problem.group));
  launch("pick_kernel", picks == 128 ? pick_kernel<kSegment, 128> : pick_kernel<kSegment, 64>, blocks,
         kPickThreads, stream, problem);
}

}  // namespace

void pick_keys(const Problem& problem, int picks, StreamHandle stream) {
  switch (problem.segment) {
    case 256:
      return pick<256>(problem, picks, stream);
    case 512:
      return pick<512>(problem, picks, stream);
    case 1024:
      return pick<1024>(problem, picks, stream);
    default:
      return pick<2048>(problem, picks, stream);
  }
}

}  // namespace splash::gpu::entmax
