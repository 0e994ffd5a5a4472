#pragma once
// Exclusive prefix sums over a block.

namespace splash::gpu::entmax {

// The sum of the values of the threads before this one; total: the sum of all. Called by every thread of the
// block.
template <int kThreads, class Value>
__device__ Value exclusive_sum(Value value, Value& total) {
  constexpr int kWarps = kThreads / 32;
  static_assert(kWarps <= 32);
  __shared__ Value warp_sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Value sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Value before = __shfl_up_sync(0xFFFFFFFFu, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  Value before_warp = 0;
  total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i == warp) before_warp = total;
    total += warp_sums[i];
  }
  __syncthreads();  // warp_sums may be written again
  return before_warp + sum - value;
}

// Replaces data[0, n) by its exclusive prefix sums and returns the total. Called by every thread of the
// block.
template <int kThreads, class Value>
__device__ Value exclusive_sums(Value* data, uint32_t n) {
  Value carry = 0;
  for (uint32_t base = 0; base < n; base += kThreads) {
    const uint32_t i = base + threadIdx.x;
    Value total;
    const Value before = exclusive_sum<kThreads>(i < n ? data[i] : Value(0), total);
    if (i < n) data[i] = carry + before;
    carry += total;
  }
  return carry;
}

}  // namespace splash::gpu::entmax
