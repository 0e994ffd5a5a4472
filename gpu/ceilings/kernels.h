#pragma once
// The kernels that press against the ceilings: enqueue one and return. Compiles without nvcc.

#include <cstdint>

#include "gpu/engine/memory.h"

namespace splash::gpu {

// How long a kernel's first block ran, by its multiprocessor's counter and by the device's clock. In device
// memory.
struct ClockSpan {
  unsigned long long cycles = 0, nanoseconds = 0;
};

// Threads a block, loads of 16 bytes that a thread has in flight, and what a block so moves at a time; sizes
// are multiples of that.
constexpr int kMemoryThreads = 512, kMemoryInFlight = 8;
constexpr int64_t kMemoryBlockBytes = int64_t{16} * kMemoryThreads * kMemoryInFlight;

void launch_fill_random(void* out, int64_t bytes, StreamHandle stream);
void launch_copy(const void* in, void* out, int64_t bytes, StreamHandle stream);
// Its blocks are too brief to time: `sink` is only there for the compiler to believe in.
void launch_read(const void* in, int64_t bytes, ClockSpan* sink, StreamHandle stream);

// A pass of a block reads kL2SliceBytes, another slice every time; at most bytes / kL2SliceBytes blocks.
constexpr int kL2InFlight = 4;
constexpr int64_t kL2SliceBytes = int64_t{16} * kMemoryThreads * kL2InFlight;
void launch_l2_read(const void* in, int64_t bytes, int blocks, int passes, ClockSpan* span,
                    StreamHandle stream);

// A pass of a block reads kMemoryBlockBytes. `in`: at least that many bytes.
void launch_shared_read(const void* in, int blocks, int passes, ClockSpan* span, StreamHandle stream);

// A step of a thread: kFmaChains * kFmaUnroll multiply-adds.
constexpr int kFmaThreads = 512, kFmaChains = 16, kFmaUnroll = 16;
void launch_fma(int blocks, int steps, ClockSpan* span, StreamHandle stream);

// A step of a thread: kExpChains * kExpUnroll results of the special function units.
constexpr int kExpThreads = 512, kExpChains = 16, kExpUnroll = 8;
void launch_exponentials(int blocks, int steps, ClockSpan* span, StreamHandle stream);

enum class MatrixType { tf32, f16, bf16, e4m3 };

// A step of a warp: kMmaTiles^2 products m16n8k(32 bytes). `random`: kMmaBytes of elements.
constexpr int kMmaThreads = 256, kMmaTiles = 4, kMmaBytes = 6 * kMmaTiles * 32 * 4;
void launch_mma(MatrixType type, const void* random, int blocks, int steps, ClockSpan* span,
                StreamHandle stream);

// A step of each of two warpgroups: [64, 128 bytes of k] times the same [256, 128 bytes]. `random`:
// kWgmmaShared bytes of elements.
constexpr int kWgmmaThreads = 256, kWgmmaN = 256, kWgmmaBytesA = 64 * 128, kWgmmaBytesB = kWgmmaN * 128;
constexpr int kWgmmaShared = 2 * kWgmmaBytesA + kWgmmaBytesB;
void launch_wgmma(MatrixType type, const void* random, int blocks, int steps, ClockSpan* span,
                  StreamHandle stream);

void launch_empty(StreamHandle stream);

}  // namespace splash::gpu
