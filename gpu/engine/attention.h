#pragma once
// Runs a variant on device tensors. The constructor checks and prepares; enqueue only checks its tensors and
// launches. Compiles without nvcc.
//
//   const Stream stream;
//   const PreparedAttention attention(find_variant("wmma/3-tile-64"), spec, Dtype::bf16, stream);
//   attention.enqueue(q, k, v, out);   // any number of times, also while a graph is captured
//   stream.synchronize();

#include "gpu/engine/tensor.h"
#include "gpu/engine/variant.h"

namespace splash::gpu {

class PreparedAttention {
 public:
  // Uploads positions and shared keys, and allocates the workspace. The variant and the stream must outlive
  // this object. Throws InvalidArgument if the spec is invalid; Unsupported, naming the limit and what would
  // work, if the variant does not take the problem or the device has too little shared memory; DeviceError if
  // there is no device or its memory does not suffice.
  PreparedAttention(const Variant& variant, AttentionSpec spec, Dtype dtype, const Stream& stream);

  // q, out: [batch, q_heads, q_len, head_dim]; k, v: [batch, kv_heads, kv_len, head_dim]. Throws
  // InvalidArgument if a tensor has other extents or another dtype, is not contiguous or not 16-byte aligned;
  // DeviceError if a launch fails. Errors while the kernels run surface at the stream's next wait.
  void enqueue(const DeviceTensorView& q, const DeviceTensorView& k, const DeviceTensorView& v,
               const DeviceTensorView& out) const;

  // Runs the variant's instrumented kernel (Variant::profile) once and waits. Returns the cycles of each
  // phase, summed over all warps; empty if the variant has no such kernel. Throws what enqueue throws, and
  // DeviceError if the run fails.
  std::vector<uint64_t> profile(const DeviceTensorView& q, const DeviceTensorView& k,
                                const DeviceTensorView& v, const DeviceTensorView& out) const;

  const Plan& plan() const { return plan_; }
  const AttentionSpec& spec() const { return spec_; }
  const Stream& stream() const { return *stream_; }

 private:
  Arguments checked(const DeviceTensorView& q, const DeviceTensorView& k, const DeviceTensorView& v,
                    const DeviceTensorView& out) const;

  const Variant* variant_;
  AttentionSpec spec_;
  Dtype dtype_;
  const Stream* stream_;
  Plan plan_;
  DeviceBuffer workspace_, q_positions_, k_positions_, key_indices_, key_counts_;
};

// What a kernel of a plan uses, as the compiler and the device report it.
struct KernelResources {
  int registers = 0;          // per thread
  int64_t static_shared = 0;  // bytes per block
  int64_t local_bytes = 0;    // per thread: spills and arrays that are not in registers
  int blocks_per_multiprocessor = 0;
};
KernelResources kernel_resources(const KernelLaunch& launch);  // throws DeviceError

}  // namespace splash::gpu
