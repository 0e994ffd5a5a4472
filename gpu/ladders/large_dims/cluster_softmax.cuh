#pragma once
// The softmax of rungs 4 and 5: a cluster computes the weights of sixteen queries, and each of its blocks
// holds a slice of head_dim. One block owns each query row. Every block sends its partial scores of the row
// to the owner. One warp of the owner adds the parts in a fixed order, takes a step of the online softmax and
// sends the weights to all blocks. All warps wait for that one warp, so its instruction count matters. sm_90.

#include "gpu/arch/cluster.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/ladders/large_dims/launch.cuh"

namespace splash::gpu::large_dims {

constexpr int kQueries = 16;

template <int kKeys>
struct alignas(16) ClusterSoftmax {
  static constexpr int kPitch = kKeys + 8;  // rows 8 banks apart: fragments meet no conflicts
  float inbox[kQueries][kKeys];  // [rank * rows + row]: that rank's partial scores of this block's own rows
  float weights[kQueries][kPitch];  // of all rows, from their owners
  float2 factors[kQueries];         // correction of what was accumulated before, sum of weights so far
  float2 state[kQueries];           // of this block's own rows: largest score and sum so far
  uint64_t inbox_full, weights_full, factors_full;
};

// All threads call it. Before the first exchange they call cluster_wait(), best before
// follow_previous_kernel().
template <int kKeys>
__device__ void init_exchange(ClusterSoftmax<kKeys>& shared) {
  if (threadIdx.x == 0) {
    arch::mbarrier_init(&shared.inbox_full, 1);
    arch::mbarrier_init(&shared.weights_full, 1);
    arch::mbarrier_init(&shared.factors_full, 1);
    arch::mbarrier_init_fence();
  }
  if (threadIdx.x < kQueries) shared.state[threadIdx.x] = make_float2(-INFINITY, 0.0f);
  arch::cluster_arrive();
}

__device__ inline int log_rows_of_block() {
  return 5 - __ffs(arch::cluster_size());
}

// All threads call it, once per step, before exchange() and where slower work hides its latency.
template <int kKeys>
__device__ void expect_exchange(ClusterSoftmax<kKeys>& shared) {
  if (threadIdx.x == 0) {
    arch::mbarrier_arrive_expect(&shared.inbox_full, sizeof(shared.inbox));
    arch::mbarrier_arrive_expect(&shared.weights_full, kQueries * kKeys * sizeof(float));
    arch::mbarrier_arrive_expect(&shared.factors_full, sizeof(shared.factors));
  }
}

// weight() with 22 correct bits. All other warps wait for the warp that calls it.
__device__ inline float quick_weight(float x, float max) {
  return arch::exp2_approx((x - (max == -INFINITY ? 0.0f : max)) * 1.4426950408889634f);
}

// One warp takes a step of the online softmax for row `own` of this block's rows. The inbox holds all parts
// of the row's scores.
template <int kKeys>
__device__ void send_weights(ClusterSoftmax<kKeys>& shared, int own, int log_rows, float scale, int visible) {
  constexpr int kLanes = kKeys / 4, kSets = 32 / kLanes;  // lanes that share a row, four keys each
  const int ranks = kQueries >> log_rows, lane = threadIdx.x % 32;
  const int set = lane / kLanes, key = lane % kLanes * 4;  // a set takes every kSets-th rank
  float x[4] = {};
#pragma unroll
  for (int first = 0; first < 16; first += kSets) {
    const int rank = first + set;
    const float4 part = rank < ranks
                            ? *reinterpret_cast<const float4*>(&shared.inbox[(rank << log_rows) + own][key])
                            : float4{};
    x[0] += part.x, x[1] += part.y, x[2] += part.z, x[3] += part.w;
  }
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] += __shfl_xor_sync(0xffffffff, x[i], offset);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = key + i < visible ? x[i] * scale : -INFINITY;
  const float2 state = shared.state[own];
  float max = fmaxf(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), state.x);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, offset));
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = quick_weight(x[i], max);
  const int row = (arch::cluster_rank() << log_rows) + own;
#pragma unroll
  for (int first = 0; first < 16; first += kSets) {
    const int to = first + set;
    if (to < ranks)
      arch::store_async(arch::remote_address(&shared.weights[row][key], to),
                        make_float4(x[0], x[1], x[2], x[3]), arch::remote_address(&shared.weights_full, to));
  }
  float sum = (x[0] + x[1]) + (x[2] + x[3]);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
  const float correction = quick_weight(state.x, max);
  sum += state.y * correction;
  if (lane < ranks)
    arch::store_async(arch::remote_address(&shared.factors[row], lane), make_float2(correction, sum),
                      arch::remote_address(&shared.factors_full, lane));
  __syncwarp();  // all lanes have read the state
  if (lane == 0) shared.state[own] = make_float2(max, sum);
}

// All threads call it, after a barrier that follows the writes of parts [groups][kQueries][pitch]. These are
// shares of this block's partial scores; exchange() adds them up. log_rows: log_rows_of_block(). Returns once
// the weights have arrived. The factors arrive a little later: call wait_for_factors() in every step. No
// block can overwrite what another still reads, because it has waited for weights that depend on the other's
// parts.
template <int kKeys, int kPitch>
__device__ void exchange(ClusterSoftmax<kKeys>& shared, const float (*parts)[kQueries][kPitch], int groups,
                         int log_rows, const Problem& problem, int first_query, int first_key,
                         uint32_t parity) {
  const int rank = arch::cluster_rank(), warps = blockDim.x / 32;
  const int rows = 1 << log_rows;  // of the sixteen that this block owns
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
  for (int own = warps - 1 - static_cast<int>(threadIdx.x / 32); own < rows; own += warps) {
    arch::mbarrier_wait(&shared.inbox_full, parity);  // the last warps wait; the first are busy above
    const int query = first_query + (rank << log_rows) + own;
    const int visible = query < problem.q_len ? problem.visible_keys(query) - first_key : 0;
    send_weights(shared, own, log_rows, problem.scale, visible);
  }
  arch::mbarrier_wait(&shared.weights_full, parity);
}

template <int kKeys>
__device__ void wait_for_factors(ClusterSoftmax<kKeys>& shared, uint32_t parity) {
  arch::mbarrier_wait(&shared.factors_full, parity);
}

}  // namespace splash::gpu::large_dims
