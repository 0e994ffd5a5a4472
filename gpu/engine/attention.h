#pragma once
// Runs a variant on device tensors: checks everything first, then only launches. Compiles without nvcc.
//
//   const Stream stream;
//   const PreparedAttention attention(find_variant("wmma/3-tile-64"), spec, Dtype::bf16, stream);
//   attention.enqueue(q, k, v, out);   // as often as wanted, also inside a graph's capture
//   stream.synchronize();

#include "gpu/engine/tensor.h"
#include "gpu/engine/variant.h"

namespace splash::gpu {

class PreparedAttention {
 public:
  // Uploads positions and shared keys, allocates the workspace. Throws InvalidArgument (spec), Unsupported
  // (variant, limit, what would work; also too little shared memory) and DeviceError (no device, out of
  // memory).
  PreparedAttention(const Variant& variant, AttentionSpec spec, Dtype dtype, const Stream& stream);

  // q, out: [batch, q_heads, q_len, head_dim]; k, v: [batch, kv_heads, kv_len, head_dim]. Throws
  // InvalidArgument where a tensor has other extents or another dtype, is not contiguous or not 16-byte
  // aligned; DeviceError where a launch fails. Errors while the kernels run surface at the stream's next
  // wait.
  void enqueue(const DeviceTensorView& q, const DeviceTensorView& k, const DeviceTensorView& v,
               const DeviceTensorView& out) const;

  // Runs the variant's instrumented twin once and waits: of each of its phases the cycles, summed over all
  // warps. Empty where it has none. Throws as enqueue, and DeviceError where the run fails.
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

// What the compiler and the device say of a kernel of a plan.
struct KernelResources {
  int registers = 0;          // a thread
  int64_t static_shared = 0;  // bytes a block
  int64_t local_bytes = 0;    // a thread: spills and arrays that are not in registers
  int blocks_per_multiprocessor = 0;
};
KernelResources kernel_resources(const KernelLaunch& launch);  // throws DeviceError

}  // namespace splash::gpu
