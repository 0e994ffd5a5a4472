#pragma once
// Turns CUDA's error codes into DeviceError. Needs the CUDA headers, but not nvcc.

#include <string>

#include <cuda_runtime_api.h>

#include "core/error.h"

namespace splash::gpu {

// `what` completes "could not …", for example "allocate 3 GiB".
inline void check_cuda(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // clears it: the next caller must not see a recoverable error
  throw DeviceError("could not " + what + ": " + cudaGetErrorString(status) + " (" +
                    cudaGetErrorName(status) + ")");
}

// Call it after a launch. Reports errors of the launch itself, not of the kernel's run.
inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), std::string("launch ") + kernel);
}

// An attribute of the current device.
inline int device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device), "ask for the current device");
  check_cuda(cudaDeviceGetAttribute(&value, which, device), "ask what the device is like");
  return value;
}

// Makes `device` current, and restores the previous device at the end of the scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check_cuda(cudaGetDevice(&previous_), "ask for the current device");
    check_cuda(cudaSetDevice(device), "select device " + std::to_string(device));
  }
  ~DeviceScope() { cudaSetDevice(previous_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace splash::gpu
