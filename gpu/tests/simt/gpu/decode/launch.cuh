#pragma once
// gpu/decode/launch.cuh on the CPU: the blocks of a cluster run together.

#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::decode {

inline int most_blocks_of_cluster() {
  return 16;
}

inline int most_blocks_together() {
  return 64;
}

inline unsigned char* dynamic_shared_memory() {
  return simt::dynamic_memory();
}

template <class Argument>
void launch_clusters(const char* /*name*/, void (*kernel)(Argument), unsigned blocks, int threads,
                     size_t shared_bytes, int cluster, StreamHandle /*stream*/, const Argument& argument) {
  simt::run({blocks, 1}, threads, ++entmax::order, [&] { kernel(argument); },
            {static_cast<unsigned>(cluster), shared_bytes});
}

template <class Argument>
void launch_together(const char* name, void (*kernel)(Argument), unsigned blocks, int threads,
                     size_t shared_bytes, int team, StreamHandle stream, const Argument& argument) {
  launch_clusters(name, kernel, blocks, threads, shared_bytes, team, stream, argument);
}

}  // namespace splash::gpu::decode
