#pragma once
// Launches the kernels of rungs 4 to 6 in clusters where asked, and early: a kernel's blocks may start before
// the previous kernel on the stream has ended (programmatic dependent launch). sm_90.

#include "gpu/ladders/large_dims/common.cuh"

namespace splash::gpu::large_dims {

// Every kernel that launch_early starts calls both. After the first call the next kernel may start. The
// second call waits until the earlier kernels on the stream have ended and their results are visible. Before
// it, a kernel may prepare anything but must not read or write global memory.
__device__ inline void let_next_kernel_come() {
  cudaTriggerProgrammaticLaunchCompletion();
}
__device__ inline void follow_previous_kernel() {
  cudaGridDependencySynchronize();
}

struct Grid {
  int ranks = 1;     // blocks per cluster, along x
  int64_t rows = 1;  // along y
};

// The kernel's blocks may start before the previous kernel on the stream has ended.
template <class... Parameters, class... Values>
void launch_early(void (*kernel)(Parameters...), const KernelLaunch& shape, const Grid& grid,
                  cudaStream_t stream, const Values&... values) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(grid.ranks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = {static_cast<unsigned>(shape.blocks / grid.rows), static_cast<unsigned>(grid.rows), 1};
  config.blockDim = {static_cast<unsigned>(shape.threads), 1, 1};
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = grid.ranks > 1 ? 2 : 1;
  if (grid.ranks > 8) {
    check_cuda(cudaFuncSetAttribute(shape.function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               "allow clusters of 16 blocks");
  }
  check_cuda(cudaLaunchKernelEx(&config, kernel, values...), "launch " + shape.name);
}

// The work of rungs 4 and 5. Each cluster takes sixteen queries and all of head_dim, one tile of keys after
// the other. `dims`: the depth of the products, padding included. `products`: tensor-core products per
// product of the mathematics (three where fp32 is split).
struct ClusterWork {
  int ranks = 1;
  int64_t dims = 0;
  int products = 1;
  bool one_tile = false;  // one tile holds all keys
};
inline std::vector<KernelTrace> trace_clusters(const AttentionSpec& spec, Dtype dtype, const Plan& plan,
                                               const ClusterWork& work) {
  const int queries = plan.tile.q, keys = plan.tile.k;
  const auto run = [=, p = Problem::of(spec), rows = TensorRows(spec.shape, dtype)](int64_t cluster,
                                                                                    BlockTrace& trace) {
    const int head = static_cast<int>(cluster) % p.heads, kv_head = head / p.group;
    const int first_query = static_cast<int>(cluster) / p.heads * queries;
    rows.read_q(trace, head, first_query, queries);
    const int tiles = work.one_tile ? 1 : p.key_tiles(first_query + queries - 1, keys);
    for (int tile = 0; tile < tiles; ++tile) {
      rows.read_k(trace, kv_head, int64_t{tile} * keys, keys);
      rows.read_v(trace, kv_head, int64_t{tile} * keys, keys);
      for (int product = 0; product < work.products; ++product) {
        trace.multiply(queries, keys, work.dims);
        trace.multiply(queries, work.dims, keys);
      }
      trace.exponentiate(queries, 128,
                         32);  // the row's warp: four scores per lane, however few keys, and the sum
      trace.next_step();
    }
    rows.write_out(trace, head, first_query, queries);
  };
  return {{.kernel = plan.kernels[0].name,
           .blocks = plan.kernels[0].blocks / work.ranks,
           .cluster = work.ranks,
           .run = run}};
}

}  // namespace splash::gpu::large_dims
