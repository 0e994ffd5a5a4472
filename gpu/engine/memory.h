#pragma once
// Streams and device memory that clean up after themselves. Compiles without nvcc.
//
//   const Stream stream;
//   DeviceBuffer workspace(stream, 1 << 20);   // ordered on the stream: neither this nor its end waits for
//   the device stream.synchronize();                      // the only waits are those that are spelled out

#include <cstdint>
#include <utility>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace splash::gpu {

using StreamHandle = CUstream_st*;

// A stream of its own on the current device, not synchronised with the default stream.
class Stream {
 public:
  Stream();  // throws DeviceError
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle handle() const { return handle_; }
  int device() const { return device_; }
  void synchronize() const;  // waits; throws DeviceError where anything enqueued before it failed

 private:
  StreamHandle handle_ = nullptr;
  int device_ = 0;
};

// Device memory, 256-byte aligned, allocated and freed in the order of its stream; the stream must outlive
// it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Throws OutOfDeviceMemory where the device's memory does not suffice, saying how much there is. Contents
  // are undefined.
  DeviceBuffer(const Stream& stream, int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  void fill(unsigned char byte);                   // enqueued
  void upload(const void* host, int64_t bytes);    // enqueued; host memory may be reused at once
  void download(void* host, int64_t bytes) const;  // waits for the copy: host memory is valid afterwards

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
  }
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  StreamHandle stream_ = nullptr;
};

// Bytes of the current device that DeviceBuffers hold, now and at most since the last reset.
int64_t used_device_bytes();
int64_t peak_device_bytes();
void reset_peak_device_bytes();

}  // namespace splash::gpu
