#pragma once
// Launches; kernels/*.cu instantiate them.

#include <algorithm>

#include "gpu/decode/append.cuh"
#include "gpu/decode/dense.cuh"
#include "gpu/decode/fill.cuh"
#include "gpu/decode/kernels.h"
#include "gpu/decode/short_step.cuh"
#include "gpu/decode/step.cuh"

namespace splash::gpu::decode {

template <class T, int kDim>
void Kernels<T, kDim>::step(const Step& p, StreamHandle stream, const Launched& launched) {
  const auto launch = [&]<int kBits>() {
    const auto blocks = static_cast<unsigned>(p.units * p.team);
    if constexpr (kBits != 0) {
      const auto launch_short = [&](void (*kernel)(Step), int warps) {
        launch_clusters("decode's short step", kernel, blocks, 32 * warps,
                        std::max(short_bytes(kBits, warps) + dynamic_bytes(p), p.least_shared_bytes), 1,
                        stream, p);
        if (launched) launched("short step");
      };
      if (p.short_warps == kWarps) return launch_short(short_kernel<T, kDim, kBits, kWarps>, kWarps);
      if (p.short_warps > 0) return launch_short(short_kernel<T, kDim, kBits, kFewWarps>, kFewWarps);
    }
    const int bytes = std::max(step_bytes(kBits) + dynamic_bytes(p), p.least_shared_bytes);
    if (!p.is_cluster) {
      entmax::launch("decode's barriers", reset_barriers_kernel, 1, kThreads, stream, p.barriers, p.units);
      if (launched) launched("barriers");
    }
    const auto launch_step = [&](void (*step)(Step)) {
      if (p.is_cluster) {
        launch_clusters("decode's step", step, blocks, kThreads, bytes, p.team, stream, p);
      } else {
        launch_together("decode's step", step, blocks, kThreads, bytes, p.team, stream, p);
      }
      if (launched) launched("step");
    };
    if (p.recent == nullptr) return launch_step(step_kernel<T, kDim, kBits, false>);
    if constexpr (kBits != 0) {  // else there is no memory
      launch_step(step_kernel<T, kDim, kBits, true>);
      launch_clusters("decode's step", recalling_kernel<T, kDim, kBits>, blocks, kThreads, bytes,
                      p.is_cluster ? p.team : 1, stream, p);
      if (launched) launched("step that recalls");
    }
  };
  if (p.cache.bits == 0) {
    launch.template operator()<0>();
  } else if constexpr (!kIsFp8<T>) {  // which has no copies
    if (p.cache.bits == 4) {
      launch.template operator()<4>();
    } else {
      launch.template operator()<8>();
    }
  }
  launch_clusters(
      "decode's dense pass", dense_kernel<T, kDim>, static_cast<unsigned>(p.dense.teams * p.dense.team),
      kThreads, static_cast<int>(sizeof(DenseMemory<T, kDim>)) + held_page_bytes(p), p.dense.team, stream, p);
  if (launched) launched("dense pass");
}

template <class T, int kDim>
int Kernels<T, kDim>::step_bytes([[maybe_unused]] int bits) {
  if constexpr (kIsFp8<T>) {
    return static_cast<int>(sizeof(StepMemory<T, kDim, 0>));
  } else {
    const std::size_t bytes = bits == 4   ? sizeof(StepMemory<T, kDim, 4>)
                              : bits == 8 ? sizeof(StepMemory<T, kDim, 8>)
                                          : sizeof(StepMemory<T, kDim, 0>);
    return static_cast<int>(bytes);
  }
}

template <class T, int kDim>
int Kernels<T, kDim>::short_bytes([[maybe_unused]] int bits, [[maybe_unused]] int warps) {
  if constexpr (!kIsFp8<T>) {
    const auto of = [&]<int kBits>() {
      return static_cast<int>(warps == kWarps ? sizeof(ShortMemory<T, kDim, kBits, kWarps>)
                                              : sizeof(ShortMemory<T, kDim, kBits, kFewWarps>));
    };
    if (bits == 4) return of.template operator()<4>();
    if (bits == 8) return of.template operator()<8>();
  }
  return 0;
}

template <class T, int kDim>
int Kernels<T, kDim>::most_team() {
  return most_blocks_of_cluster();
}

template <class T, int kDim>
int Kernels<T, kDim>::most_together() {
  return most_blocks_together();
}

template <class T, int kDim>
void Kernels<T, kDim>::fill(const Cache& cache, const PageTable& table, const int32_t* from_lengths,
                            int pages_each, StreamHandle stream) {
  if constexpr (!kIsFp8<T>) {
    const auto blocks = static_cast<unsigned>(int64_t{table.batch} * pages_each * cache.kv_heads);
    entmax::launch("decode's fill", fill_kernel<T, kDim>, blocks, kFillThreads, stream, cache, table,
                   from_lengths, pages_each);
  }
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
