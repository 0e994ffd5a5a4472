// DRAM, L2 and shared memory. Every load is 16 bytes per thread, a thread has several in flight, and a warp's
// loads are contiguous.

#include "gpu/ceilings/clock_span.cuh"
#include "gpu/ceilings/kernels.h"
#include "gpu/cuda_check.h"

namespace splash::gpu {
namespace {

constexpr int kThreads = kMemoryThreads, kInFlight = kMemoryInFlight;

__device__ __forceinline__ uint4 load_past_l1(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

__device__ __forceinline__ void mix(uint4& into, const uint4& value) {
  into.x ^= value.x;
  into.y ^= value.y;
  into.z ^= value.z;
  into.w ^= value.w;
}

// The condition is almost never true, but the compiler cannot know that and so keeps the loads.
__device__ __forceinline__ void keep(const uint4& value, ClockSpan* sink) {
  if (value.x == 0xA5A5A5A5u && value.y == value.x && value.z == value.x && value.w == value.x)
    sink->cycles = 0;
}

// Random bits, because constant data costs the memory less power.
__global__ void fill_random(uint4* out, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint64_t x = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
  const auto next = [&x] {
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return static_cast<uint32_t>(x >> 32);
  };
  out[i] = make_uint4(next(), next(), next(), next());
}

// Each block moves kThreads * kInFlight vectors, and the total is a multiple of that.
__global__ void __launch_bounds__(kThreads) copy_kernel(const uint4* in, uint4* out) {
  const int64_t base = int64_t{blockIdx.x} * kThreads * kInFlight + threadIdx.x;
  uint4 values[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) values[i] = __ldcs(in + base + i * kThreads);
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) __stcs(out + base + i * kThreads, values[i]);
}

__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* in, ClockSpan* sink) {
  const int64_t base = int64_t{blockIdx.x} * kThreads * kInFlight + threadIdx.x;
  uint4 values[kInFlight], all = {};
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) values[i] = __ldcs(in + base + i * kThreads);
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) mix(all, values[i]);
  keep(all, sink);
}

// All blocks walk through the working set together, again and again. What a block reads was therefore last
// read by another SM, long enough ago that L2 does not serve both with one access.
__global__ void __launch_bounds__(kThreads)
    l2_kernel(const uint4* in, unsigned slices, unsigned passes, ClockSpan* span) {
  const SpanClock clock;
  uint4 all = {};
  for (unsigned pass = 0; pass < passes; ++pass) {
    const unsigned slice = (blockIdx.x + pass * gridDim.x) % slices;
    const uint4* base = in + slice * (kThreads * kL2InFlight) + threadIdx.x;
    uint4 values[kL2InFlight];
#pragma unroll
    for (int i = 0; i < kL2InFlight; ++i) values[i] = load_past_l1(base + i * kThreads);
#pragma unroll
    for (int i = 0; i < kL2InFlight; ++i) mix(all, values[i]);
  }
  keep(all, span);
  clock.close(span);
}

__global__ void __launch_bounds__(kThreads) shared_kernel(const uint4* in, int passes, ClockSpan* span) {
  const SpanClock clock;
  __shared__ uint4 data[kThreads * 4];
  for (int i = 0; i < 4; ++i) data[i * kThreads + threadIdx.x] = in[i * kThreads + threadIdx.x];
  __syncthreads();
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(data + threadIdx.x));
  uint4 all = {};
  for (int pass = 0; pass < passes; ++pass) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      uint4 value;  // volatile, or the compiler would load once for all passes
      asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                   : "r"(address + i % 4 * kThreads * 16));
      mix(all, value);
    }
  }
  keep(all, span);
  clock.close(span);
}

}  // namespace

void launch_fill_random(void* out, int64_t bytes, StreamHandle stream) {
  const int64_t count = bytes / 16;
  fill_random<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(static_cast<uint4*>(out),
                                                                              count);
  check_launch("fill_random");
}

void launch_copy(const void* in, void* out, int64_t bytes, StreamHandle stream) {
  copy_kernel<<<static_cast<unsigned>(bytes / kMemoryBlockBytes), kThreads, 0, stream>>>(
      static_cast<const uint4*>(in), static_cast<uint4*>(out));
  check_launch("copy_kernel");
}

void launch_read(const void* in, int64_t bytes, ClockSpan* sink, StreamHandle stream) {
  read_kernel<<<static_cast<unsigned>(bytes / kMemoryBlockBytes), kThreads, 0, stream>>>(
      static_cast<const uint4*>(in), sink);
  check_launch("read_kernel");
}

void launch_l2_read(const void* in, int64_t bytes, int blocks, int passes, ClockSpan* span,
                    StreamHandle stream) {
  l2_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(in),
                                             static_cast<unsigned>(bytes / kL2SliceBytes),
                                             static_cast<unsigned>(passes), span);
  check_launch("l2_kernel");
}

void launch_shared_read(const void* in, int blocks, int passes, ClockSpan* span, StreamHandle stream) {
  shared_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(in), passes, span);
  check_launch("shared_kernel");
}

}  // namespace splash::gpu
