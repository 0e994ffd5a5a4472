#include "gpu/engine/runs.h"

#include <algorithm>

#include "core/round.h"
#include "gpu/cuda_check.h"

namespace splash::gpu {
namespace {

constexpr int kThreads = 256, kPiece = 16384;  // bytes, that a block copies at a time

struct SomeRuns {
  Runs runs[kMostTogether];
  int64_t pieces_before[kMostTogether + 1];
  int count;
};

template <class Word>
__device__ __forceinline__ void copy_piece(void* to, const void* from, int bytes) {
  constexpr int kAtOnce = 4;
  Word* const out = static_cast<Word*>(to);
  const Word* const in = static_cast<const Word*>(from);
  const int words = bytes / static_cast<int>(sizeof(Word));
  for (int first = static_cast<int>(threadIdx.x); first < words; first += kAtOnce * kThreads) {
    Word held[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * kThreads < words) held[i] = in[first + i * kThreads];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * kThreads < words) out[first + i * kThreads] = held[i];
  }
}

__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ SomeRuns some) {
  const int64_t pieces = some.pieces_before[some.count];
  int at = 0;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    while (piece >= some.pieces_before[at + 1]) ++at;
    const Runs& runs = some.runs[at];
    const int64_t per_run = (runs.bytes + kPiece - 1) / kPiece, within = piece - some.pieces_before[at];
    const int64_t run = within / per_run, first = within % per_run * kPiece;
    char* const to = static_cast<char*>(runs.to) + run * runs.to_apart + first;
    const char* const from = static_cast<const char*>(runs.from) + run * runs.from_apart + first;
    const int bytes = static_cast<int>(min(runs.bytes - first, int64_t{kPiece}));
    const auto unaligned = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
    if (unaligned % 16 == 0) {
      copy_piece<uint4>(to, from, bytes);
    } else {
      copy_piece<char>(to, from, bytes);
    }
  }
}

}  // namespace

void copy_runs_together(std::span<const Runs> all, StreamHandle stream) {
  const int blocks = 4 * device_attribute(cudaDevAttrMultiProcessorCount);
  for (size_t first = 0; first < all.size(); first += kMostTogether) {
    SomeRuns some{};
    for (const Runs& runs : all.subspan(first, std::min(all.size() - first, size_t{kMostTogether}))) {
      some.runs[some.count] = runs;
      some.pieces_before[some.count + 1] =
          some.pieces_before[some.count] + runs.count * ceil_div(runs.bytes, int64_t{kPiece});
      ++some.count;
    }
    const int64_t pieces = some.pieces_before[some.count];
    if (pieces == 0) continue;
    copy_kernel<<<static_cast<unsigned>(std::min(pieces, int64_t{blocks})), kThreads, 0, stream>>>(some);
    check_launch("copy_kernel");
  }
}

}  // namespace splash::gpu
