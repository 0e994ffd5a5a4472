#pragma once
// Launches; kernels/*.cu instantiate them.

#include "gpu/decode/append.cuh"
#include "gpu/decode/fill.cuh"
#include "gpu/decode/kernels.h"
#include "gpu/decode/refine.cuh"
#include "gpu/decode/screen.cuh"
#include "gpu/decode/solve.cuh"
#include "gpu/decode/start.cuh"

namespace splash::gpu::decode {

template <class T, int kDim>
void enqueue_screen(const Step& p, Range range, StreamHandle stream) {
  const int runs = runs_of(p.segments, range);
  const auto launch = [&](auto kernel, int warps) {
    const auto blocks = static_cast<unsigned>((int64_t{p.units} * runs + warps - 1) / warps);
    entmax::launch("decode's screen", kernel, blocks, 32 * warps, stream, p, range);
  };
  if (p.cache.bits == 4) {
    launch(screen_kernel<T, kDim, 4>, ScreenPlan<kDim, 4>::kWarps);
  } else if (p.cache.bits == 8) {
    launch(screen_kernel<T, kDim, 8>, ScreenPlan<kDim, 8>::kWarps);
  } else {
    launch(screen_exact_kernel<T, kDim>, kExactWarps);
  }
}

template <class T, int kDim>
void Kernels<T, kDim>::step(const Step& p, StreamHandle stream, const Launched& launched) {
  const auto units = static_cast<unsigned>(p.units);
  const auto done = [&](const char* name) {
    if (launched) launched(name);
  };
  entmax::launch("decode's start", start_kernel<T, kDim>, units, kStartThreads, stream, p);
  done("start");
  const int runs = p.segments.early + p.segments.recent;
  if (runs > 0) {
    enqueue_screen<T, kDim>(p, Range::recent, stream);
    done("screen recent");
    entmax::launch("decode's refinement", refine_kernel<T, kDim>, units, kRefineThreads, stream, p,
                   p.segments.early, runs);
    done("refine");
    enqueue_screen<T, kDim>(p, Range::early, stream);
    done("screen early");
    entmax::launch("decode's refinement", refine_kernel<T, kDim>, units, kRefineThreads, stream, p, 0, runs);
    done("refine again");
  }
  const int parts =
      std::max(1, std::min((p.segments.count() + kRescoreWarps - 1) / kRescoreWarps, 1024 / p.units));
  entmax::launch("decode's rescoring", rescore_kernel<T, kDim>, units * static_cast<unsigned>(parts),
                 32 * kRescoreWarps, stream, p, parts);
  done("rescore");
  entmax::launch("decode's solver", solve_kernel<T, kDim>, units, kSolveThreads, stream, p);
  done("solve");
  entmax::launch("decode's fallback", fallback_kernel<T, kDim>, static_cast<unsigned>(p.fallback_blocks),
                 kSolveThreads, stream, p);
  done("fallback");
}

template <class T, int kDim>
void Kernels<T, kDim>::fill(const Cache& cache, const PageTable& table, const int32_t* from_lengths,
                            int pages_each, StreamHandle stream) {
  const auto blocks = static_cast<unsigned>(int64_t{table.batch} * pages_each * cache.kv_heads);
  entmax::launch("decode's fill", fill_kernel<T, kDim>, blocks, kFillThreads, stream, cache, table,
                 from_lengths, pages_each);
}

template <class T, int kDim>
void Kernels<T, kDim>::append(const Cache& cache, const PageTable& table, const RowTensor& keys,
                              const RowTensor& values, int tokens, StreamHandle stream) {
  const int64_t threads = int64_t{table.batch} * tokens * cache.kv_heads * (kDim / 8);
  const auto blocks = static_cast<unsigned>((threads + kAppendThreads - 1) / kAppendThreads);
  entmax::launch("decode's append", append_kernel<T, kDim>, blocks, kAppendThreads, stream, cache, table,
                 keys, values, tokens);
}

}  // namespace splash::gpu::decode
