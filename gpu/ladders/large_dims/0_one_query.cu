// Rung 0, as in source 003: one query per block of 256 threads. Its scores take (kv_len + 32) floats of
// shared memory, and all loads are scalar. For Q K^T a warp takes a key; for P V a thread takes a column.
//
// Arithmetic at head_dim 8192, 4 heads x 16 queries x 16 keys, fp32: there are 64 blocks on 132
// multiprocessors. Each reads all of its head's K and V (1 MB) and does 0.5 MFLOP. 64 MB from L2 would need
// 12 us at 5.5 TB/s, but a warp has only a handful of loads in flight: 2 keys x 256 dependent steps, then 32
// columns x 16 keys per thread. At ~600 cycles of L2 latency over 4 loads in flight that is some 80 000
// cycles, 45 us. So the document measured latency, not bandwidth.

#include <algorithm>

#include "gpu/ladders/large_dims/common.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Every thread of the block gets the result; `scratch` holds one float per warp.
template <class Reduce>
__device__ float block_reduce(float x, float neutral, float* scratch, Reduce&& reduce_warp) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  x = reduce_warp(x);
  __syncthreads();  // the previous reduction may still be reading the scratch
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  return reduce_warp(lane < kWarps ? scratch[lane] : neutral);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    one_query(const Problem problem, const T* q, const T* k, const T* v, T* out) {
  extern __shared__ float shared[];
  float* scores = shared;                    // [kv_len]
  float* scratch = shared + problem.kv_len;  // [32]
  const int head = blockIdx.x / problem.q_len, query = blockIdx.x % problem.q_len;
  const int head_dim = problem.head_dim, keys = problem.visible_keys(query);
  q += blockIdx.x * int64_t{head_dim};
  out += blockIdx.x * int64_t{head_dim};
  k += problem.kv_offset(head);
  v += problem.kv_offset(head);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int key = warp; key < keys; key += kWarps) {
    float sum = 0;
    for (int i = lane; i < head_dim; i += 32)
      sum += to_float(q[i]) * to_float(k[int64_t{key} * head_dim + i]);
    sum = warp_sum(sum);
    if (lane == 0) scores[key] = sum * problem.scale;
  }
  __syncthreads();

  float max = -INFINITY;
  for (int key = threadIdx.x; key < keys; key += kThreads) max = fmaxf(max, scores[key]);
  max = block_reduce(max, -INFINITY, scratch, warp_max);
  float sum = 0;
  for (int key = threadIdx.x; key < keys; key += kThreads) sum += scores[key] = weight(scores[key], max);
  sum = block_reduce(sum, 0, scratch, warp_sum);  // its barriers also publish the weights
  const float factor = normalization(sum);

  for (int i = threadIdx.x; i < head_dim; i += kThreads) {
    float sum_of_values = 0;
    for (int key = 0; key < keys; ++key)
      sum_of_values += scores[key] * to_float(v[int64_t{key} * head_dim + i]);
    out[i] = from_float<T>(sum_of_values * factor);
  }
}

template <class T>
const void* kernel() {
  return reinterpret_cast<const void*>(one_query<T>);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& /*device*/) {
  const Tile tile{.q = 1, .k = 1};
  return {
      .tile = tile,
      .kernels = {{.name = "one_query",
                   .function = with_element(dtype, [](auto element) { return kernel<decltype(element)>(); }),
                   .blocks = spec.shape.rows(),
                   .threads = kThreads,
                   .shared_bytes = (spec.shape.kv_len + 32) * int64_t{sizeof(float)}}}};
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    const KernelLaunch& kernel = plan.kernels[0];
    one_query<T><<<kernel.blocks, kernel.threads, kernel.shared_bytes, args.stream>>>(
        Problem::of(spec), static_cast<const T*>(args.q), static_cast<const T*>(args.k),
        static_cast<const T*>(args.v), static_cast<T*>(args.out));
  });
  check_launch("one_query");
}

// Only the first key reads the query from memory; later keys find it in L1.
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const auto run = [p = Problem::of(spec), rows = TensorRows(spec.shape, dtype)](int64_t block,
                                                                                 BlockTrace& trace) {
    const int head = static_cast<int>(block / p.q_len), query = static_cast<int>(block % p.q_len);
    const int kv_head = head / p.group, keys = p.visible_keys(query);
    rows.read_q(trace, head, query, 1);
    for (int key = 0; key < keys; key += kWarps) {
      rows.read_k(trace, kv_head, key, std::min(kWarps, keys - key));
      trace.next_step();
    }
    for (int column = 0; column < p.head_dim; column += kThreads) {
      rows.read_v(trace, kv_head, 0, keys, {column, kThreads});
      trace.next_step();
    }
    rows.write_out(trace, head, query, 1);
    trace.multiply(1, keys, p.head_dim);
    trace.exponentiate(1, keys, 0);
    trace.multiply(1, p.head_dim, keys);
  };
  return {{.kernel = "one_query", .blocks = plan.kernels[0].blocks, .through_l1 = true, .run = run}};
}

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 0,
    .name = "one-query",
    .idea = "one query a block of 256 threads, scores in shared memory, K and V read again by every query",
    .finding =
        "64 us at head_dim 8192, 0.5 TFLOP/s: 64 blocks of latency, not cache or bandwidth; with 4 times the "
        "blocks (64 queries and keys) it does 1.9 there, as at 2048 (2.1), and with 16 times (64 heads) 3.4, "
        "though 64 heads are 134 MB, past L2.",
    .limits = {.dtypes = {Dtype::f32, Dtype::bf16},
               .head_dim_max = 8192,
               .causal = true,
               .kv_len_max = 58000,  // the scores fill 227 KB of shared memory
               .compute_capability = 75},
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
