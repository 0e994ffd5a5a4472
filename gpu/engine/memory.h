#pragma once
// Streams and device memory that clean up after themselves. Compiles without nvcc.
//
//   const Stream stream;
//   DeviceBuffer workspace(stream, 1 << 20);  // stream-ordered: neither allocating nor freeing waits
//   stream.synchronize();                     // only synchronize() and download() wait for the device

#include <cstdint>
#include <memory>
#include <utility>

struct CUstream_st;  // cudaStream_t is a pointer to it
struct CUevent_st;   // cudaEvent_t likewise

namespace splash::gpu {

using StreamHandle = CUstream_st*;

// A new stream on the current device. It does not synchronise with the default stream.
class Stream {
 public:
  enum class Priority { lowest, highest };  // highest: its kernels go before the waiting blocks of others
  explicit Stream(Priority priority = Priority::lowest);  // throws DeviceError
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle handle() const { return handle_; }
  int device() const { return device_; }
  void synchronize() const;  // waits; throws DeviceError if anything enqueued before failed

 private:
  StreamHandle handle_ = nullptr;
  int device_ = 0;
};

// How far a stream is, for others to wait for.
class StreamPoint {
 public:
  StreamPoint();  // on the current device; throws DeviceError
  void record(StreamHandle stream) const;
  void await(StreamHandle stream) const;  // the stream waits for what was recorded last

 private:
  struct Destroy {
    void operator()(CUevent_st* event) const;
  };
  std::unique_ptr<CUevent_st, Destroy> event_;
};

// Device memory, 256-byte aligned, allocated and freed in the order of its stream. The stream must outlive
// it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // The contents are undefined. Throws InvalidArgument if `bytes` is negative; OutOfDeviceMemory, saying how
  // much is free, if the device's memory does not suffice; DeviceError if CUDA fails otherwise.
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
  void upload(const void* host, int64_t bytes);    // enqueued; pageable host memory may be reused at once
  void download(void* host, int64_t bytes) const;  // waits until the copy is complete

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

// Bytes in use in the current device's default memory pool, from which DeviceBuffers are allocated: now, and
// the peak since the last reset. Throw DeviceError.
int64_t used_device_bytes();
int64_t peak_device_bytes();
void reset_peak_device_bytes();

}  // namespace splash::gpu
