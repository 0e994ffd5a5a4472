#pragma once
// The kernels that measure the ceilings. Each function enqueues one kernel and returns; it throws DeviceError
// if the launch fails. Compiles without nvcc.

#include <cstdint>

#include "gpu/engine/memory.h"

namespace splash::gpu {

// How long a kernel's first block ran, by its SM's cycle counter and by the device's nanosecond timer. Lies
// in device memory.
struct ClockSpan {
  unsigned long long cycles = 0, nanoseconds = 0;
};

// Threads per block, 16-byte loads in flight per thread, and the bytes that a block therefore moves at a
// time. `bytes` of launch_copy and launch_read is a multiple of kMemoryBlockBytes.
constexpr int kMemoryThreads = 512, kMemoryInFlight = 8;
constexpr int64_t kMemoryBlockBytes = int64_t{16} * kMemoryThreads * kMemoryInFlight;

void launch_fill_random(void* out, int64_t bytes, StreamHandle stream);
void launch_copy(const void* in, void* out, int64_t bytes, StreamHandle stream);
// Its blocks are too brief to time. `sink` is never written in practice; it only keeps the compiler from
// dropping the loads.
void launch_read(const void* in, int64_t bytes, ClockSpan* sink, StreamHandle stream);

// Each pass of a block reads one slice of kL2SliceBytes; the next pass reads another one, if there are more
// slices than blocks. `blocks` is at most bytes / kL2SliceBytes.
constexpr int kL2InFlight = 4;
constexpr int64_t kL2SliceBytes = int64_t{16} * kMemoryThreads * kL2InFlight;
void launch_l2_read(const void* in, int64_t bytes, int blocks, int passes, ClockSpan* span,
                    StreamHandle stream);

// Each pass of a block reads kMemoryBlockBytes of shared memory. `in` holds at least that many bytes.
void launch_shared_read(const void* in, int blocks, int passes, ClockSpan* span, StreamHandle stream);

// Per step and thread: kFmaChains * kFmaUnroll multiply-adds.
constexpr int kFmaThreads = 512, kFmaChains = 16, kFmaUnroll = 16;
void launch_fma(int blocks, int steps, ClockSpan* span, StreamHandle stream);

// Per step and thread: kExpChains * kExpUnroll results of the special function units.
constexpr int kExpThreads = 512, kExpChains = 16, kExpUnroll = 8;
void launch_exponentials(int blocks, int steps, ClockSpan* span, StreamHandle stream);

enum class MatrixType { tf32, f16, bf16, e4m3 };

// Per step and warp: kMmaTiles^2 products m16n8k, where k is 32 bytes of elements. `random` holds kMmaBytes
// of elements. Throws Unsupported for e4m3.
constexpr int kMmaThreads = 256, kMmaTiles = 4, kMmaBytes = 6 * kMmaTiles * 32 * 4;
void launch_mma(MatrixType type, const void* random, int blocks, int steps, ClockSpan* span,
                StreamHandle stream);

// Per step, each of two warpgroups multiplies its own [64, 128 bytes of k] by the same [256, 128 bytes of k].
// `random` holds kWgmmaShared bytes of elements.
constexpr int kWgmmaThreads = 256, kWgmmaN = 256, kWgmmaBytesA = 64 * 128, kWgmmaBytesB = kWgmmaN * 128;
constexpr int kWgmmaShared = 2 * kWgmmaBytesA + kWgmmaBytesB;
void launch_wgmma(MatrixType type, const void* random, int blocks, int steps, ClockSpan* span,
                  StreamHandle stream);

void launch_empty(StreamHandle stream);

}  // namespace splash::gpu
