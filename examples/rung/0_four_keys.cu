// Rung 0 of examples: what `splash new rung examples/four-keys` wrote, with four keys per iteration.
//
// Arithmetic: the skeleton waits, per key, for the loads of a row of K, five dependent shuffles (some 23
// cycles each), two exponentials and then a row of V: some 600 + 120 + 60 cycles of latency from L2, of which
// nothing overlaps. Four keys at a time have their loads and shuffles in flight together and share one
// correction: 800 cycles per four keys instead of per one, so up to 4 x where few warps hide latency. Where
// the chip is full, L2 bounds both, and nothing is gained.

#include <algorithm>
#include <cmath>

#include "gpu/arch/reduce.cuh"
#include "gpu/cuda_check.h"
#include "gpu/engine/trace.h"
#include "gpu/engine/variant.h"

namespace splash::gpu {
namespace {

constexpr int kWarp = 32, kColumns = 8;  // columns of a row per lane: head_dim is at most 256
constexpr int kKeys = 4;                 // per iteration
constexpr int kKeysOfStep = 32;          // of the trace: keys whose loads are in flight together

struct Problem {
  int group, q_len, kv_len, head_dim;  // group: query heads per key head
  float scale;
  bool causal;

  static Problem of(const AttentionSpec& spec) {
    const AttentionShape& s = spec.shape;
    return {static_cast<int>(s.group()),
            static_cast<int>(s.q_len),
            static_cast<int>(s.kv_len),
            static_cast<int>(s.head_dim),
            static_cast<float>(spec.score_scale()),
            spec.mask.causal};
  }
  // The query sees keys [0, visible_keys). Causal masks align the last query with the last key.
  __host__ __device__ int visible_keys(int query) const {
    const int seen = causal ? query + 1 + kv_len - q_len : kv_len;
    return seen < 0 ? 0 : seen;
  }
};

// q, out: [heads, q_len, head_dim]; k, v: [heads / group, kv_len, head_dim]. Online softmax: `sum` and `row`
// are relative to the largest score so far. A row that sees no key, or scores of -inf alone, becomes zeros.
__global__ void __launch_bounds__(kWarp)
    attention(const Problem p, const float* q, const float* k, const float* v, float* out) {
  const int head = blockIdx.x / p.q_len, query = blockIdx.x % p.q_len, lane = threadIdx.x;
  const int64_t row_offset = blockIdx.x * int64_t{p.head_dim};
  const int64_t kv_offset = int64_t{head / p.group} * p.kv_len * p.head_dim;
  const int keys = p.visible_keys(query);
  float row[kColumns] = {}, max = -INFINITY, sum = 0;
  for (int first = 0; first < keys; first += kKeys) {
    float scores[kKeys] = {};
    for (int d = lane; d < p.head_dim; d += kWarp) {
      const float query_value = q[row_offset + d];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        if (first + j < keys) scores[j] += query_value * k[kv_offset + int64_t{first + j} * p.head_dim + d];
      }
    }
    float new_max = max;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      scores[j] = first + j < keys ? arch::warp_sum(scores[j]) * p.scale : -INFINITY;
      new_max = fmaxf(new_max, scores[j]);
    }
    const float finite_max = new_max == -INFINITY ? 0 : new_max, correction = expf(max - finite_max);
    max = new_max;
    sum *= correction;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) row[i] *= correction;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      if (first + j >= keys) break;
      const float weight = expf(scores[j] - finite_max);
      sum += weight;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int d = lane + i * kWarp;
        if (d < p.head_dim) row[i] += weight * v[kv_offset + int64_t{first + j} * p.head_dim + d];
      }
    }
  }
  const float factor = sum == 0 ? 0 : 1 / sum;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int d = lane + i * kWarp;
    if (d < p.head_dim) out[row_offset + d] = row[i] * factor;
  }
}

Plan plan(const AttentionSpec& spec, Dtype /*dtype*/, const DeviceInfo& /*device*/) {
  const Tile tile{.q = 1, .k = 1};
  return {.tile = tile,
          .kernels = {{.name = "attention",
                       .function = reinterpret_cast<const void*>(attention),
                       .blocks = spec.shape.rows(),
                       .threads = kWarp}}};
}

void launch(const AttentionSpec& spec, Dtype /*dtype*/, const Plan& plan, const Arguments& args) {
  attention<<<plan.kernels[0].blocks, kWarp, 0, args.stream>>>(
      Problem::of(spec), static_cast<const float*>(args.q), static_cast<const float*>(args.k),
      static_cast<const float*>(args.v), static_cast<float*>(args.out));
  check_launch("attention");
}

// The kernel's loops on the CPU. FLOPs and bytes are counted from them (gpu/tests/counts_test.cpp).
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const auto run = [p = Problem::of(spec), rows = TensorRows(spec.shape, dtype)](int64_t block,
                                                                                 BlockTrace& trace) {
    const int64_t head = block / p.q_len, query = block % p.q_len;
    const int keys = p.visible_keys(static_cast<int>(query));
    rows.read_q(trace, head, query, 1);
    for (int key = 0; key < keys; key += kKeysOfStep) {
      rows.read_k(trace, head / p.group, key, std::min(kKeysOfStep, keys - key));
      rows.read_v(trace, head / p.group, key, std::min(kKeysOfStep, keys - key));
      trace.next_step();
    }
    rows.write_out(trace, head, query, 1);
    trace.multiply(1, keys, p.head_dim);
    trace.exponentiate(kWarp, keys, (keys + kKeys - 1) / kKeys);  // by every lane
    trace.multiply(1, p.head_dim, keys);
  };
  return {{.kernel = "attention", .blocks = plan.kernels[0].blocks, .through_l1 = true, .run = run}};
}

const Variant kVariant{.ladder = "examples",
                       .rung = 0,
                       .name = "four-keys",
                       .idea = "one row per warp, fp32, online softmax over four keys at a time",
                       .limits = {.dtypes = {Dtype::f32}, .causal = true},
                       .plan = plan,
                       .launch = launch,
                       .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
