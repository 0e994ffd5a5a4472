#pragma once
// How PyTorch 2.10 and newer let C code look at their tensors and take memory from their allocator, without
// being linked: functions behind the capsule `torch.Tensor.__dlpack_c_exchange_api__`, laid out as DLPack 1.3
// says (dlpack.h, DLPackExchangeAPI). Each returns 0, or sets a Python error.

#include <cstdint>
#include <nanobind/ndarray.h>

namespace splash::python::dlpack {

constexpr uint32_t kMajor = 1;  // the version of the layouts below
constexpr int32_t kCuda = 2;
constexpr uint8_t kUnsigned = 1, kFloat = 2;  // codes of dtypes

using Tensor = nanobind::dlpack::dltensor;

struct ManagedTensor {
  uint32_t major = 0, minor = 0;
  void* context = nullptr;
  void (*destroy)(ManagedTensor*) = nullptr;
  uint64_t flags = 0;
  Tensor tensor;
};

struct Exchange {
  uint32_t major, minor;
  const Exchange* older;  // of a lower major version, or null
  int (*allocate)(Tensor* like, ManagedTensor** made, void* context,
                  void (*fail)(void* context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensor** made);
  int (*object_from_managed)(ManagedTensor* stolen, void** object);
  int (*tensor_from_object)(void* object, Tensor* borrowed);
  int (*current_stream)(int32_t device_type, int32_t device, void** stream);
};

}  // namespace splash::python::dlpack
