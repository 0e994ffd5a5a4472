// Rows whose support outgrew the lists of the screen, one block a row: all scores once into memory, Newton on
// those, then the values where p > 0. Exact for any support; for rows here and there (ties, sinks seen from
// nowhere else, short keys), not for whole near-dense tiles.

#include "gpu/entmax/row_path.h"

#include "gpu/cuda_check.h"
#include "gpu/entmax/vectors.cuh"
#include "gpu/entmax/weights.cuh"

namespace splash::gpu::entmax {
namespace {

constexpr int kThreads = kRowPathThreads, kWarps = kThreads / 32;

// The same sum in all threads, added in the same order every time.
struct BlockSum {
  float parts[kWarps];

  __device__ float operator()(float x) {
    x = arch::warp_sum(x);
    __syncthreads();  // the parts of the sum before are read
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (const float part : parts) sum += part;
    return sum;
  }
};

// scores[key] = <q, key>; the largest of this thread's, and whether one is NaN or +inf. Eight lanes a key,
// four keys at once: it is the latency of the loads that counts.
template <class T>
__device__ float score_keys(const Problem& p, const T* q, const T* keys, int end, float* scores,
                            bool& poison) {
  constexpr int kAtOnce = 4, kStep = kThreads / 8;
  const int lane = static_cast<int>(threadIdx.x) % 8;
  float largest = -INFINITY;
  for (int first = static_cast<int>(threadIdx.x) / 8; first - static_cast<int>(threadIdx.x) / 8 < end;
       first += kAtOnce * kStep) {
    float sums[kAtOnce] = {};
    for (int column = 8 * lane; column < p.head_dim; column += 64) {
      const uint4 query = load8(q + column);
      uint4 loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        loaded[i] = load8(keys + int64_t{min(first + i * kStep, end - 1)} * p.head_dim + column);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sums[i] += dot8<T>(query, loaded[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      for (int lanes = 4; lanes > 0; lanes /= 2) sums[i] += __shfl_xor_sync(kWarp, sums[i], lanes);
      if (first + i * kStep >= end) continue;
      if (lane == 0) scores[first + i * kStep] = sums[i];
      poison |= !(sums[i] < INFINITY);
      largest = fmaxf(largest, sums[i]);
    }
  }
  return largest;
}

template <class T>
__global__ void __launch_bounds__(kThreads) row_kernel(const __grid_constant__ Problem p, float* scratch) {
  __shared__ BlockSum block_sum;
  __shared__ float maxima[kWarps], output[kWarps][256];
  __shared__ int counts[kThreads];
  __shared__ unsigned long long base;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  float* const scores = scratch + int64_t{blockIdx.x} * p.kv_len;
  const int rows = *p.crowded_count;
  for (int index = static_cast<int>(blockIdx.x); index < rows; index += static_cast<int>(gridDim.x)) {
    const int64_t row = p.crowded_rows[index];
    const int head = static_cast<int>(row / p.q_len),
              end = min(static_cast<int>(row % p.q_len) + p.reach, p.kv_len);
    const int64_t first_key = int64_t{head / p.group} * p.kv_len;
    const Entmax entmax = entmax_of(p, head);
    bool poison = false;
    float largest = score_keys(p, static_cast<const T*>(p.q) + row * p.head_dim,
                               static_cast<const T*>(p.k) + first_key * p.head_dim, end, scores, poison);
    largest = arch::warp_max(largest);
    if (lane == 0) maxima[warp] = largest;
    poison = __syncthreads_or(poison) != 0;  // also: the scores are there
    for (const float x : maxima) largest = fmaxf(largest, x);

    float bound = bound_of_largest(largest, entmax), total = 0;
    const auto excess = [&](int key) { return entmax.gain * (scores[key] - bound); };
    for (int step = 0; step < 60 && !poison; ++step) {
      float sum = 0, slope = 0;
      for (int key = thread; key < end; key += kThreads) {
        const float u = excess(key), of_u = entmax.slope(u);
        sum = fmaf(fmaxf(u, 0.0f), of_u, sum);
        slope += of_u;
      }
      total = block_sum(sum);
      const float next = newton(entmax, bound, total, block_sum(slope));
      if (!(next > bound)) break;
      bound = next;
    }

    // Each thread counts a run of keys of its own, so that entries come in the order of their keys.
    const int run = (end + kThreads - 1) / kThreads, from = min(thread * run, end), to = min(from + run, end);
    int count = 0;
    float sum = 0;
    for (int key = from; key < to && !poison; ++key) {
      const float u = excess(key);
      count += u > 0;
      sum += entmax.weight(u);
    }
    total = block_sum(sum);
    counts[thread] = count;
    __syncthreads();
    int before = 0, all = 0;
    for (int i = 0; i < kThreads; ++i) {
      before += i < thread ? counts[i] : 0;
      all += counts[i];
    }
    if (p.support.columns != nullptr) {
      if (thread == 0) base = atomicAdd(p.support.used, static_cast<unsigned long long>(all));
      __syncthreads();
      const bool fits = base + all <= static_cast<unsigned long long>(p.support.capacity);
      int64_t at = static_cast<int64_t>(base) + before;
      for (int key = from; key < to && fits && !poison; ++key) {
        if (const float u = excess(key); u > 0) {
          p.support.columns[at] = key;
          p.support.excess[at++] = u;
        }
      }
      if (thread == 0) {
        p.support.offsets[row] = fits ? static_cast<int64_t>(base) : -1;
        p.support.counts[row] = all;
      }
    }
    if (thread == 0 && p.tau != nullptr) p.tau[row] = poison ? NAN : entmax.gain * bound;

    // A warp takes 32 keys at a time, a lane each; of those with p > 0 the values, eight dimensions a lane.
    float sums[8] = {};
    const T* const values = static_cast<const T*>(p.v) + first_key * p.head_dim + 8 * lane;
    for (int first = 32 * warp; first < end && !poison; first += kThreads) {
      const float weight = first + lane < end ? entmax.weight(excess(first + lane)) / total : 0;
      for (unsigned left = __ballot_sync(kWarp, weight > 0); left != 0; left &= left - 1) {
        const int key = __ffs(static_cast<int>(left)) - 1;
        const float probability = __shfl_sync(kWarp, weight, key);
        if (8 * lane < p.head_dim)
          add_scaled<T>(sums, probability, load8(values + int64_t{first + key} * p.head_dim));
      }
    }
    for (int i = 0; i < 8; ++i) output[warp][8 * lane + i] = poison ? NAN : sums[i];
    __syncthreads();
    if (thread < p.head_dim / 8) {
      float result[8] = {};
      for (int w = 0; w < kWarps; ++w)
        for (int i = 0; i < 8; ++i) result[i] += output[w][8 * thread + i];
      store8(static_cast<T*>(p.out) + row * p.head_dim + 8 * thread, rounded<T>(result));
    }
    __syncthreads();  // the scores and sums of this row are read
  }
}

}  // namespace

const void* row_kernel_of(Dtype dtype) {
  return dtype == Dtype::bf16 ? reinterpret_cast<const void*>(row_kernel<__nv_bfloat16>)
                              : reinterpret_cast<const void*>(row_kernel<__half>);
}

void launch_row_path(const Problem& problem, Dtype dtype, int blocks, float* scratch, StreamHandle stream) {
  if (dtype == Dtype::bf16) {
    row_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(problem, scratch);
  } else {
    row_kernel<__half><<<blocks, kThreads, 0, stream>>>(problem, scratch);
  }
  check_launch("row_kernel");
}

}  // namespace splash::gpu::entmax
