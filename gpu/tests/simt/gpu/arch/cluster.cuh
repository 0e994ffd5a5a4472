#pragma once
// gpu/arch/cluster.cuh on the CPU: what decode needs of it.

namespace splash::gpu::arch {

inline void cluster_sync() {
  simt::exchange(simt::Scope::cluster, "cluster_sync", 0);
}

}  // namespace splash::gpu::arch
