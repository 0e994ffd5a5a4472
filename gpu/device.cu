#include "gpu/device.h"

#include "gpu/cuda_check.h"

namespace splash::gpu {
namespace {

// Never launched. Its attributes tell whether this build holds code for a device.
__global__ void probe() {}

std::string version_string(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

struct Count {
  int devices = 0;
  cudaError_t status = cudaSuccess;
};

Count count_devices() {
  Count count;
  count.status = cudaGetDeviceCount(&count.devices);
  if (count.status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    count.devices = 0;
  }
  return count;
}

int64_t attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device),
             "read attribute " + std::to_string(which) + " of device " + std::to_string(device));
  return value;
}

}  // namespace

std::vector<DeviceInfo> list_devices() {
  const int devices = count_devices().devices;
  int driver = 0, runtime = 0;
  if (devices > 0) {
    check_cuda(cudaDriverGetVersion(&driver), "read the driver's version");
    check_cuda(cudaRuntimeGetVersion(&runtime), "read the runtime's version");
  }
  std::vector<DeviceInfo> result;
  for (int device = 0; device < devices; ++device) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, device),
               "read the properties of device " + std::to_string(device));
    DeviceInfo info;
    info.index = device;
    info.name = properties.name;
    info.compute_major = properties.major;
    info.compute_minor = properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    info.l2_bytes = properties.l2CacheSize;
    info.shared_bytes_per_multiprocessor = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
    info.shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
    info.memory_bus_bits = properties.memoryBusWidth;
    // CUDA 13 took the clocks out of cudaDeviceProp; the attributes, in kHz, are in every version.
    info.clock_hz = 1e3 * static_cast<double>(attribute(cudaDevAttrClockRate, device));
    info.memory_clock_hz = 1e3 * static_cast<double>(attribute(cudaDevAttrMemoryClockRate, device));
    info.driver_version = version_string(driver);
    info.runtime_version = version_string(runtime);
    result.push_back(std::move(info));
  }
  return result;
}

std::string device_unavailable_reason() {
  const Count count = count_devices();
  if (count.devices > 0) return "";
  if (count.status == cudaSuccess || count.status == cudaErrorNoDevice) {
    return "the NVIDIA driver shows no device (is CUDA_VISIBLE_DEVICES empty?)";
  }
  if (count.status == cudaErrorInsufficientDriver) {
    int driver = 0;  // 0 where there is none
    static_cast<void>(cudaDriverGetVersion(&driver));
    if (driver == 0) return "no NVIDIA driver is installed";
    int runtime = 0;
    static_cast<void>(cudaRuntimeGetVersion(&runtime));
    return "the NVIDIA driver serves CUDA " + version_string(driver) + " and this build needs " +
           version_string(runtime);
  }
  return std::string(cudaGetErrorString(count.status)) + " (" + cudaGetErrorName(count.status) + ")";
}

void require_device(int index) {
  const int devices = count_devices().devices;
  if (devices == 0) throw DeviceError("no CUDA device: " + device_unavailable_reason());
  if (index < 0 || index >= devices) {
    throw DeviceError("device " + std::to_string(index) + " is not there; this machine has devices 0 to " +
                      std::to_string(devices - 1));
  }
  const DeviceScope scope(index);
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, probe);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    static_cast<void>(cudaGetLastError());
    const auto major = attribute(cudaDevAttrComputeCapabilityMajor, index);
    const auto minor = attribute(cudaDevAttrComputeCapabilityMinor, index);
    throw DeviceError("this build holds no code for device " + std::to_string(index) +
                      " (compute capability " + std::to_string(major) + "." + std::to_string(minor) +
                      "); it was built for " + SPLASH_CUDA_ARCHITECTURES + ", set CMAKE_CUDA_ARCHITECTURES");
  }
  check_cuda(status, "use device " + std::to_string(index));
}

}  // namespace splash::gpu
