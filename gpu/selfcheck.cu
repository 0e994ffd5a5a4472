#include "gpu/selfcheck.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gpu/cuda_check.h"
#include "gpu/device.h"

namespace splash::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kElements = (int64_t{1} << 22) + 77;  // no multiple of a block: the last one is partly idle
constexpr int64_t kGuard = 1024;                        // elements past the end
constexpr float kFactor = 0.3F;
constexpr int kWarmUps = 3, kCopies = 21;
constexpr int64_t kMinCopy = int64_t{128} << 20, kMaxCopy = int64_t{512} << 20;  // bytes

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<void, FreeDevice>;

DeviceMemory allocate(int64_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, static_cast<size_t>(bytes)), "allocate " + std::to_string(bytes) + " bytes");
  return DeviceMemory(memory);
}

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;

Event make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "create an event");
  return Event(event);
}

__global__ void triad(float* a, const float* b, const float* c, float factor, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) a[i] = __fmaf_rn(factor, c[i], b[i]);  // one rounding, as std::fma
}

void check_triad(SelfCheck& result) {
  std::vector<float> b(kElements), c(kElements), a(kElements + kGuard);
  for (int64_t i = 0; i < kElements; ++i) {
    b[i] = static_cast<float>(i % 1009) / 7.0F;
    c[i] = static_cast<float>(i % 2003) - 1001.0F;
  }
  const int64_t bytes = kElements * static_cast<int64_t>(sizeof(float));
  const int64_t guarded_bytes = bytes + kGuard * static_cast<int64_t>(sizeof(float));
  const DeviceMemory device_a = allocate(guarded_bytes), device_b = allocate(bytes),
                     device_c = allocate(bytes);
  auto* const out = static_cast<float*>(device_a.get());
  check_cuda(cudaMemcpy(device_b.get(), b.data(), bytes, cudaMemcpyHostToDevice), "copy to the device");
  check_cuda(cudaMemcpy(device_c.get(), c.data(), bytes, cudaMemcpyHostToDevice), "copy to the device");
  check_cuda(cudaMemset(out, 0xFF, guarded_bytes), "poison the output");  // every float a NaN

  const auto blocks = static_cast<unsigned>((kElements + kThreads - 1) / kThreads);
  triad<<<blocks, kThreads>>>(out, static_cast<const float*>(device_b.get()),
                              static_cast<const float*>(device_c.get()), kFactor, kElements);
  check_launch("triad");
  check_cuda(cudaMemcpy(a.data(), out, guarded_bytes, cudaMemcpyDeviceToHost), "run the triad");

  result.elements = kElements;
  for (int64_t i = 0; i < kElements; ++i) {
    const float expected = std::fma(kFactor, c[i], b[i]);
    result.mismatches += std::memcmp(&a[i], &expected, sizeof expected) != 0 ? 1 : 0;
  }
  constexpr uint32_t kPoison = 0xFFFFFFFF;
  for (int64_t i = kElements; i < kElements + kGuard; ++i) {
    result.guard_overwrites += std::memcmp(&a[i], &kPoison, sizeof kPoison) != 0 ? 1 : 0;
  }
}

// Copies device to device, through buffers of four times L2's size (128 to 512 MiB), to measure DRAM.
void measure_copy(SelfCheck& result, int device) {
  const DeviceInfo info = list_devices().at(device);
  const int64_t bytes = std::clamp(4 * info.l2_bytes, kMinCopy, kMaxCopy);
  const DeviceMemory from = allocate(bytes), to = allocate(bytes);
  check_cuda(cudaMemset(from.get(), 1, bytes), "fill the copy's source");
  const Event begin = make_event(), end = make_event();
  std::vector<float> milliseconds;
  for (int i = 0; i < kWarmUps + kCopies; ++i) {
    check_cuda(cudaEventRecord(begin.get()), "record an event");
    check_cuda(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice), "copy on the device");
    check_cuda(cudaEventRecord(end.get()), "record an event");
    check_cuda(cudaEventSynchronize(end.get()), "wait for the copy");
    float elapsed = 0;
    check_cuda(cudaEventElapsedTime(&elapsed, begin.get(), end.get()), "read the events");
    if (i >= kWarmUps) milliseconds.push_back(elapsed);
  }
  const auto middle = milliseconds.begin() + kCopies / 2;
  std::nth_element(milliseconds.begin(), middle, milliseconds.end());
  result.copy_bytes = 2 * bytes;
  result.copy_seconds = 1e-3 * static_cast<double>(*middle);
  result.copy_bytes_per_second = static_cast<double>(result.copy_bytes) / result.copy_seconds;
}

}  // namespace

SelfCheck run_self_check(int device) {
  require_device(device);
  const DeviceScope scope(device);
  SelfCheck result;
  check_triad(result);
  measure_copy(result, device);
  return result;
}

}  // namespace splash::gpu
