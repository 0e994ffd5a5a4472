// dL/dbias of each head and distance: the sum of dL/dscore over the pairs of the support at that distance.
// Many pairs of all rows share an entry, in no order. So they are added as integers, whose sum has no order:
// in units of a power of two that leaves room for as many as there are, at least 2^-31 of the head's largest
// dL/dscore.

#include <algorithm>
#include <bit>

#include "gpu/entmax/backward/row_tile.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kBiasThreads = 256;
constexpr uint32_t kInfinityBits = 0x7F800000;

// By which a head's dL/dscore are multiplied. largest: bits of the largest magnitude.
__device__ double units_of(uint32_t largest, int count_bits) {
  const int exponent = static_cast<int>(largest >> 23) - 126;  // the largest is below 2^exponent
  return ldexp(1.0, 62 - count_bits - exponent);
}

__global__ void __launch_bounds__(kBiasThreads) clear_bias(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  const int64_t entries = int64_t{p.q_heads} * p.bias.distances;
  for (int64_t i = int64_t{blockIdx.x} * kBiasThreads + threadIdx.x; i < entries;
       i += int64_t{gridDim.x} * kBiasThreads)
    p.bias_sums[i] = 0;
  if (blockIdx.x > 0) return;
  for (uint32_t head = threadIdx.x; head < p.q_heads; head += kBiasThreads) p.largest_scores[head] = 0;
}

// Calls use(head, query, entry in the support) for a warp's rows: a lane takes every 32nd entry. finish(head)
// ends a row.
template <class Use, class Finish>
__device__ __forceinline__ void for_each_entry(const BackwardProblem& p, const Use& use,
                                               const Finish& finish) {
  constexpr uint32_t kWarps = kBiasThreads / 32;
  for (uint32_t row = blockIdx.x * kWarps + threadIdx.x / 32; row < p.rows; row += gridDim.x * kWarps) {
    const int64_t pool = p.support.offsets[row];
    const uint32_t count = pool < 0 ? 0 : static_cast<uint32_t>(p.support.counts[row]),
                   head = row / p.q_len % p.q_heads;
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32) use(head, row % p.q_len, pool + i);
    finish(head);
  }
}

__global__ void __launch_bounds__(kBiasThreads)
    find_largest_scores(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  uint32_t largest = 0;  // bits of magnitudes rise with them; NaN's are the largest
  for_each_entry(
      p,
      [&](uint32_t, uint32_t, int64_t entry) {
        largest = max(largest, __float_as_uint(p.score_gradients[entry]) & 0x7FFFFFFFu);
      },
      [&](uint32_t head) {
        if (largest > 0) atomicMax(&p.largest_scores[head], largest);
        largest = 0;
      });
}

__global__ void __launch_bounds__(kBiasThreads)
    add_scores(const __grid_constant__ BackwardProblem p, const int count_bits) {
  wait_for_kernels_before();
  for_each_entry(
      p,
      [&](uint32_t head, uint32_t query, int64_t entry) {
        const uint32_t largest = p.largest_scores[head];
        const float score = p.score_gradients[entry];
        if (largest >= kInfinityBits || score == 0) return;
        const auto units =
            static_cast<long long>(rint(static_cast<double>(score) * units_of(largest, count_bits)));
        const int at = p.bias.entry(static_cast<int>(query), p.support.columns[entry]);
        atomicAdd(&p.bias_sums[int64_t{head} * p.bias.distances + at],
                  static_cast<unsigned long long>(units));
      },
      [](uint32_t) {});
}

// A head with a dL/dscore that is not finite gets NaN.
__global__ void __launch_bounds__(kBiasThreads)
    write_bias(const __grid_constant__ BackwardProblem p, const int count_bits) {
  wait_for_kernels_before();
  const int64_t entries = int64_t{p.q_heads} * p.bias.distances;
  for (int64_t i = int64_t{blockIdx.x} * kBiasThreads + threadIdx.x; i < entries;
       i += int64_t{gridDim.x} * kBiasThreads) {
    const uint32_t largest = p.largest_scores[i / p.bias.distances];
    const auto sum = static_cast<double>(static_cast<long long>(p.bias_sums[i]));
    p.d_bias[i] =
        largest >= kInfinityBits
            ? NAN
            : static_cast<float>(sum / units_of(largest, count_bits) / static_cast<double>(p.scale));
  }
}

}  // namespace

void sum_bias(const BackwardProblem& p, StreamHandle stream) {
  const int count_bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(p.support.capacity, 1)));
  const int64_t entries = int64_t{p.q_heads} * p.bias.distances;
  const auto blocks = [](int64_t threads) {
    return static_cast<unsigned>(
        std::clamp<int64_t>((threads + kBiasThreads - 1) / kBiasThreads, 1, kMostBlocks));
  };
  launch("clear_bias", clear_bias, blocks(entries), kBiasThreads, stream, p);
  launch("find_largest_scores", find_largest_scores, blocks(int64_t{p.rows} * 32), kBiasThreads, stream, p);
  launch("add_scores", add_scores, blocks(int64_t{p.rows} * 32), kBiasThreads, stream, p, count_bits);
  launch("write_bias", write_bias, blocks(entries), kBiasThreads, stream, p, count_bits);
}

}  // namespace splash::gpu::entmax::backward
