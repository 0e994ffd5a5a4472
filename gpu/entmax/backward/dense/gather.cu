// Copies Q and dO of the dense rows so that those of a head follow one another: TMA loads tiles of
// consecutive rows, but dense rows lie anywhere. Rows without p > 0 (no key, or a NaN among their scores)
// become zeros, like the padding of the last tile.

#include <algorithm>

#include "gpu/entmax/arguments/key_range.h"
#include "gpu/entmax/backward/problem.h"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kThreads = 256, kMostGathering = 512;  // blocks

__global__ void __launch_bounds__(kThreads)
    gather_rows_of_tiles(const __grid_constant__ BackwardProblem p, const int work) {
  wait_for_kernels_before();
  const Dense& dense = p.dense;
  const auto thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && thread < 2) dense.queues[thread] = 0;
  const int chunks = static_cast<int>(p.head_dim) / 8;  // of 16 bytes
  for (auto i = static_cast<int>(blockIdx.x); i < work; i += static_cast<int>(gridDim.x)) {
    const int head = i / dense.tiles, first = i % dense.tiles * kDenseTile;
    const int count = dense.from.rows.counts[head];
    if (first / (2 * kDenseTile) * (2 * kDenseTile) >= count) continue;  // tiles are filled in pairs
    const int* const queries = dense.from.rows.queries + int64_t{head} * p.q_len;
    const float* const tau = dense.from.tau + int64_t{head} * p.q_len;
    for (int at = thread; at < kDenseTile * chunks; at += kThreads) {
      const int row = first + at / chunks;
      uint4 q{}, d_out{};
      if (row < count && isfinite(tau[queries[row]])) {
        const int64_t from = (int64_t{head} * p.q_len + queries[row]) * chunks + at % chunks;
        q = static_cast<const uint4*>(p.q)[from];
        d_out = static_cast<const uint4*>(p.d_out)[from];
      }
      const int64_t to = int64_t{i} * kDenseTile * chunks + at;
      static_cast<uint4*>(dense.q)[to] = q;
      static_cast<uint4*>(dense.d_out)[to] = d_out;
    }
    if (thread >= kDenseTile) continue;
    const int row = first + thread, query = row < count ? queries[row] : 0;
    const KeyRange seen = row < count
                              ? range_of(dense, query)
                              : KeyRange{dense.kv_len, dense.kv_len};  // so that neither end ever falls
    float* const facts = dense.facts + int64_t{i} * kFacts * kDenseTile + thread;
    facts[kShift * kDenseTile] = row < count && isfinite(tau[query]) ? -tau[query] : -INFINITY;
    facts[kBegin * kDenseTile] = __int_as_float(seen.begin);
    facts[kEnd * kDenseTile] = __int_as_float(seen.end);
    facts[kDelta * kDenseTile] = facts[kInverse * kDenseTile] = 0;
  }
}

}  // namespace

void gather_dense(const BackwardProblem& p, StreamHandle stream) {
  const int work = static_cast<int>(p.rows / p.q_len) * p.dense.tiles;
  const auto blocks = static_cast<unsigned>(std::min(work, kMostGathering));
  launch("gather_rows_of_tiles", gather_rows_of_tiles, blocks, kThreads, stream, p, work);
}

}  // namespace splash::gpu::entmax::backward
