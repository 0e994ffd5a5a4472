#include "gpu/engine/memory.h"

#include <fmt/format.h>

#include "gpu/cuda_check.h"

namespace splash::gpu {
namespace {

cudaMemPool_t current_pool() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "ask for the current device");
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "ask for the memory pool");
  return pool;
}

int64_t pool_attribute(cudaMemPoolAttr which) {
  uint64_t bytes = 0;
  check_cuda(cudaMemPoolGetAttribute(current_pool(), which, &bytes), "ask the memory pool for its use");
  return static_cast<int64_t>(bytes);
}

}  // namespace

Stream::Stream(Priority priority) {
  check_cuda(cudaGetDevice(&device_), "ask for the current device");
  int lowest = 0, highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "ask for priorities of streams");
  check_cuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking,
                                          priority == Priority::highest ? highest : lowest),
             "create a stream");
}

Stream::~Stream() {
  cudaStreamDestroy(handle_);
}

void Stream::synchronize() const {
  check_cuda(cudaStreamSynchronize(handle_), "finish the work of a stream");
}

StreamPoint::StreamPoint() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event");
  event_.reset(event);
}

void StreamPoint::Destroy::operator()(CUevent_st* event) const {
  cudaEventDestroy(event);
}

void StreamPoint::record(StreamHandle stream) const {
  check_cuda(cudaEventRecord(event_.get(), stream), "record an event");
}

void StreamPoint::await(StreamHandle stream) const {
  check_cuda(cudaStreamWaitEvent(stream, event_.get(), 0), "let a stream wait");
}

DeviceBuffer::DeviceBuffer(const Stream& stream, int64_t bytes) : bytes_(bytes), stream_(stream.handle()) {
  if (bytes < 0) throw InvalidArgument(fmt::format("a buffer of {} bytes; at least 0 are needed", bytes));
  if (bytes == 0) return;
  const cudaError_t status = cudaMallocAsync(&data_, static_cast<size_t>(bytes), stream_);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "ask for the free device memory");
    throw OutOfDeviceMemory(
        fmt::format("out of device memory: {} bytes are needed, {} of {} are free", bytes, free, total));
  }
  check_cuda(status, fmt::format("allocate {} bytes of device memory", bytes));
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFreeAsync(data_, stream_);
}

void DeviceBuffer::fill(unsigned char byte) {
  if (bytes_ == 0) return;
  check_cuda(cudaMemsetAsync(data_, byte, static_cast<size_t>(bytes_), stream_), "fill device memory");
}

void DeviceBuffer::upload(const void* host, int64_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(data_, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
             "copy to the device");
}

void DeviceBuffer::download(void* host, int64_t bytes) const {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(host, data_, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
             "copy from the device");
  check_cuda(cudaStreamSynchronize(stream_), "run what a copy from the device waits for");
}

int64_t used_device_bytes() {
  return pool_attribute(cudaMemPoolAttrUsedMemCurrent);
}
int64_t peak_device_bytes() {
  return pool_attribute(cudaMemPoolAttrUsedMemHigh);
}

void reset_peak_device_bytes() {
  uint64_t zero = 0;
  check_cuda(cudaMemPoolSetAttribute(current_pool(), cudaMemPoolAttrUsedMemHigh, &zero),
             "reset the pool's peak");
}

}  // namespace splash::gpu
