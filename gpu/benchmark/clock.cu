#include "gpu/benchmark/clock.h"

#include "gpu/cuda_check.h"

namespace splash::gpu {
namespace {

constexpr unsigned long long kSpinNanoseconds = 50'000;

__device__ unsigned long long now() {
  unsigned long long nanoseconds = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

// Spins, then writes the cycles and the nanoseconds that passed to `result`, unless it is null.
__global__ void spin_kernel(unsigned long long* result) {
  const unsigned long long begin = now();
  const long long begin_cycles = clock64();
  unsigned long long end = begin;
  while (end - begin < kSpinNanoseconds) end = now();
  if (result == nullptr) return;
  result[0] = static_cast<unsigned long long>(clock64() - begin_cycles);
  result[1] = end - begin;
}

}  // namespace

double measure_clock_hz(const Stream& stream) {
  const DeviceBuffer result(stream, 2 * sizeof(unsigned long long));
  spin_kernel<<<1, 1, 0, stream.handle()>>>(static_cast<unsigned long long*>(result.data()));
  check_launch("spin_kernel");
  unsigned long long host[2] = {0, 1};
  result.download(host, sizeof host);
  return 1e9 * static_cast<double>(host[0]) / static_cast<double>(host[1]);
}

void spin(const Stream& stream) {
  spin_kernel<<<1, 1, 0, stream.handle()>>>(nullptr);
  check_launch("spin_kernel");
}

}  // namespace splash::gpu
