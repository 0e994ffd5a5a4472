#pragma once
// The NVIDIA GPUs of this machine. Compiles without nvcc; a build without CUDA finds none and says why.
//
//   for (const auto& device : splash::gpu::list_devices()) fmt::print("{}\n", device.name);
//   splash::gpu::require_device(0);  // DeviceError, with the reason, if kernels cannot run

#include <cstdint>
#include <string>
#include <vector>

namespace splash::gpu {

struct DeviceInfo {
  int index = 0;  // as cudaSetDevice takes it, after CUDA_VISIBLE_DEVICES
  std::string name;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_multiprocessor = 0;
  int64_t shared_bytes_per_block = 0;  // the largest that a kernel may opt in to
  int memory_bus_bits = 0;
  double clock_hz = 0;         // the highest SM clock; kernels may run at a lower one
  double memory_clock_hz = 0;  // the highest
  std::string driver_version;  // the newest CUDA that the driver serves, for example "13.0"
  std::string runtime_version;
};

// Empty, without throwing, if there is no GPU, no driver or no CUDA in this build. Throws DeviceError if CUDA
// cannot describe a device that it lists.
std::vector<DeviceInfo> list_devices();

// One clause, for example "no NVIDIA driver is installed"; empty if list_devices() finds a device.
std::string device_unavailable_reason();

// Throws DeviceError unless device `index` exists and this build holds code for it (NotBuilt, a DeviceError,
// in a build without CUDA).
void require_device(int index = 0);

}  // namespace splash::gpu
