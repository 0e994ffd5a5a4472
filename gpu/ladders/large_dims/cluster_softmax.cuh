#pragma once
// How the blocks of a cluster, each with a slice of head_dim, come to the weights of sixteen queries: rungs 4
// and 5. Every query row has an owner among the blocks. Each block sends its part of the row's scores to the
// owner, whose warp adds the parts in the order of the ranks, takes a step of the online softmax and sends
// the weights to all. sm_90.

#include "gpu/arch/cluster.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/ladders/large_dims/launch.cuh"

namespace splash::gpu::large_dims {

constexpr int kQueries = 16;

template <int kKeys>
struct ClusterSoftmax {
  static constexpr int kPitch = kKeys + 8;  // rows 8 banks apart: fragments meet no conflicts
  float inbox[kQueries][kKeys];             // [rank * rows + row]: that rank's part of this block's own rows
  float weights[kQueries][kPitch];          // of all rows, from their owners
  float2 factors[kQueries];  // correction of what was accumulated before, sum of weights so far
  float2 state[kQueries];    // of this block's own rows: largest score and sum so far
  uint64_t inbox_full, weights_full;
};

// All threads; before the first exchange they cluster_wait().
template <int kKeys>
__device__ void init_exchange(ClusterSoftmax<kKeys>& shared) {
  if (threadIdx.x == 0) {
    arch::mbarrier_init(&shared.inbox_full, 1);
    arch::mbarrier_init(&shared.weights_full, 1);
    arch::mbarrier_init_fence();
  }
  if (threadIdx.x < kQueries) shared.state[threadIdx.x] = make_float2(-INFINITY, 0.0f);
  arch::cluster_arrive();
}

// One step of the online softmax of row `own` of this block's, of which the inbox holds all parts; a warp.
template <int kKeys>
__device__ void send_weights(ClusterSoftmax<kKeys>& shared, int own, int log_rows, float scale, int visible) {
  constexpr int kLanes = kKeys / 4;  // that share a row, four keys each; the warp has several such sets
  const int ranks = kQueries >> log_rows, lane = threadIdx.x % 32, key = lane % kLanes * 4;
  float x[4] = {};
#pragma unroll
  for (int rank = 0; rank < 16; ++rank) {  // all reads at once, also of what is not there
    const float4 part =
        *reinterpret_cast<const float4*>(&shared.inbox[((rank << log_rows) + own) % kQueries][key]);
    const bool there = rank < ranks;
    x[0] += there ? part.x : 0, x[1] += there ? part.y : 0, x[2] += there ? part.z : 0,
        x[3] += there ? part.w : 0;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = key + i < visible ? x[i] * scale : -INFINITY;
  const float2 state = shared.state[own];
  float max = fmaxf(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), state.x);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, offset));
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = weight(x[i], max);
  float sum = (x[0] + x[1]) + (x[2] + x[3]);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
  const float correction = weight(state.x, max);
  sum += state.y * correction;
  const int row = (arch::cluster_rank() << log_rows) + own;
  for (int to = lane / kLanes; to < ranks; to += 32 / kLanes) {
    const uint32_t full = arch::remote_address(&shared.weights_full, to);
    arch::store_async(arch::remote_address(&shared.weights[row][key], to),
                      make_float4(x[0], x[1], x[2], x[3]), full);
    if (key == 0)
      arch::store_async(arch::remote_address(&shared.factors[row], to), make_float2(correction, sum), full);
  }
  __syncwarp();  // all lanes have read the state
  if (lane == 0) shared.state[own] = make_float2(max, sum);
}

// All threads, after a barrier behind the writes of parts [groups][kQueries][pitch]: shares of this block's
// part of the scores, here added up. Returns once the weights are there. No block can be a step ahead of what
// another still reads: it has waited for weights that follow from the other's parts.
template <int kKeys, int kPitch>
__device__ void exchange(ClusterSoftmax<kKeys>& shared, const float (*parts)[kQueries][kPitch], int groups,
                         const Problem& problem, int first_query, int first_key, uint32_t parity) {
  const int rank = arch::cluster_rank(), warps = blockDim.x / 32;
  const int log_rows = 5 - __ffs(arch::cluster_size()),
            rows = 1 << log_rows;  // of the sixteen, a block's own
  if (threadIdx.x == 0) {
    arch::mbarrier_arrive_expect(&shared.inbox_full, sizeof(shared.inbox));
    arch::mbarrier_arrive_expect(&shared.weights_full, kQueries * (kKeys * sizeof(float) + sizeof(float2)));
  }
  for (int i = threadIdx.x; i < kQueries * kKeys / 4; i += blockDim.x) {
    const int row = i / (kKeys / 4), key = i % (kKeys / 4) * 4;
    float4 total{};
#pragma unroll 8
    for (int group = 0; group < groups; ++group) {
      const float4 part = *reinterpret_cast<const float4*>(&parts[group][row][key]);
      total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    arch::store_async(
        arch::remote_address(&shared.inbox[(rank << log_rows) + (row & (rows - 1))][key], row >> log_rows),
        total, arch::remote_address(&shared.inbox_full, row >> log_rows));
  }
  for (int own = threadIdx.x / 32; own < rows; own += warps) {
    arch::mbarrier_wait(&shared.inbox_full, parity);
    const int query = first_query + (rank << log_rows) + own;
    const int visible = query < problem.q_len ? problem.visible_keys(query) - first_key : 0;
    send_weights(shared, own, log_rows, problem.scale, visible);
  }
  arch::mbarrier_wait(&shared.weights_full, parity);
}

}  // namespace splash::gpu::large_dims
