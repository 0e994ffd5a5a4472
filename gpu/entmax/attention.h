#pragma once
// Exact entmax attention with its gradients: owns what lies between forward and backward (tau, the support,
// workspaces), and the mask's tables. Compiles without nvcc.
//
//   const Stream stream;
//   EntmaxAttention attention(spec, Dtype::bf16, stream);
//   attention.forward(q, k, v, out);
//   attention.backward(q, k, v, d_out, d_q, d_k, d_v);
//   stream.synchronize();
//
// The support is the set of keys with p > 0 per row. On Hopper's path forward does not store rows with broad
// supports: backward computes them as dense products (bf16 and f16, head_dim up to 128, all keys, no mask or
// a causal one). Every other row's support is stored whole. Only the device knows how many entries that
// takes. So backward waits for forward and reads their number; where the store was too small, it grows and
// forward runs again. To avoid that wait, in a graph's capture or for inputs that repeat:
//
//   attention.forward(q, k, v, out);
//   attention.ensure_stored();   // waits; from here on inputs with as large a support need no check
//   capture: attention.forward(q, k, v, out); attention.backward(q, k, v, d_out, d_q, d_k, d_v);
//
// One object holds one support, that of the last forward: layers whose backward is still to come need one
// object each.

#include <optional>

#include "core/attention_spec.h"
#include "gpu/engine/tensor.h"
#include "gpu/entmax/forward.h"

namespace splash::gpu::entmax {

enum class StoreCheck {
  wait,   // wait for forward and read the number of entries, unless they are known to fit
  trust,  // the caller knows that they fit: the same inputs did, or it reads support_entries() afterwards
};

class EntmaxAttention {
 public:
  // capacity: entries that the store holds at first; 0: 16 per query row, or fewer where the mask or k_keep
  // allows no more. tuning: nullopt takes what was measured on this GPU (tuned_for). Takes the problems that
  // enqueue_forward takes.
  // Enqueues copies of alpha and of the mask's tables. Throws InvalidArgument (spec, capacity, tuning),
  // Unsupported (spec, dtype, path), DeviceError (no device), and OutOfDeviceMemory. The stream must outlive
  // the object.
  EntmaxAttention(AttentionSpec spec, Dtype dtype, const Stream& stream, int64_t capacity = 0,
                  ForwardPath path = ForwardPath::fastest,
                  const std::optional<Tuning>& tuning = std::nullopt);

  // Enqueues, and waits for nothing. q, out: [batch, q_heads, q_len, head_dim]; k, v: [batch, kv_heads,
  // kv_len, head_dim]. Throws InvalidArgument where a tensor has other extents or another dtype, is not
  // contiguous or not 16-byte aligned; DeviceError where a launch fails.
  void forward(const DeviceTensorView& q, const DeviceTensorView& k, const DeviceTensorView& v,
               const DeviceTensorView& out);

  // Waits for the last forward. Where its support did not fit, the store grows to what it needs and an eighth
  // more, and forward runs again: its tensors must still be there, unchanged. Also allocates backward's
  // workspace. Returns whether anything was allocated: graphs captured earlier then refer to freed memory.
  // Throws InvalidArgument where there was no forward or the support has 2^31 entries or more;
  // OutOfDeviceMemory.
  bool ensure_stored();

  // Gradients of the last forward, whose q, k, v these are: d_q as q; d_k, d_v as k; d_alpha: [q_heads] in
  // device memory (dL/dalpha summed over batch and rows), or null; d_sinks, and d_bias [q_heads, distances],
  // alike, where spec has sinks or a bias. Waits as `check` says, but never inside a capture. Where the
  // support did not fit, forward runs again with d_q as its output. Throws as forward and ensure_stored do;
  // InvalidArgument where a capture comes before backward's workspace is allocated.
  void backward(const DeviceTensorView& q, const DeviceTensorView& k, const DeviceTensorView& v,
                const DeviceTensorView& d_out, const DeviceTensorView& d_q, const DeviceTensorView& d_k,
                const DeviceTensorView& d_v, float* d_alpha = nullptr, StoreCheck check = StoreCheck::wait,
                float* d_sinks = nullptr, float* d_bias = nullptr);

  // Entries of the last support, whether they fit or not, without those of broad rows; after a graph's
  // replay, of the replayed forward. Waits. Throws InvalidArgument where there was no forward.
  int64_t support_entries() const;
  int64_t capacity() const { return support_.capacity; }

  // In device memory. alpha, [1] or [q_heads], may be written on the stream between a backward and the next
  // forward: 1.01 <= alpha <= 2.
  float* alpha() const { return static_cast<float*>(alpha_.data()); }
  // In device memory, null where there are none; may be written as alpha may.
  float* sinks() const { return static_cast<float*>(sinks_.data()); }  // [q_heads]
  float* bias() const { return static_cast<float*>(bias_.data()); }    // [q_heads, distances]
  uint64_t* dropout_seed() const { return static_cast<uint64_t*>(dropout_seed_.data()); }
  const float* tau() const { return static_cast<const float*>(tau_.data()); }  // [batch, q_heads, q_len]
  const Support& support() const { return support_; }
  const AttentionSpec& spec() const { return spec_; }
  ForwardPath path() const { return path_; }  // hopper or portable
  const Tuning& tuning() const { return tuning_; }

 private:
  struct Tensors {
    DeviceTensorView q{}, k{}, v{}, out{};
  };
  void require_support() const;
  void enqueue(const Tensors& tensors);
  void make_store(int64_t capacity);
  bool make_workspace();
  bool make_room(const Tensors& tensors);  // waits; returns whether the store grew
  bool capturing() const;
  ForwardArguments forward_arguments(const Tensors& tensors) const;
  int64_t workspace_bytes(int64_t capacity) const;

  AttentionSpec spec_;
  Dtype dtype_;
  const Stream* stream_;
  ForwardPath path_ = ForwardPath::fastest;
  Tuning tuning_;
  int64_t most_entries_ = 0;        // (query, key) pairs that the mask shows and the selection may keep
  bool leaves_broad_rows_ = false;  // StoredRows::sparse
  DeviceBuffer alpha_, head_k_keep_, mask_tables_, sinks_, dropout_seed_, bias_, tau_, used_, offsets_,
      counts_, columns_, excess_, forward_workspace_, backward_workspace_;
  DeviceMask mask_{};
  Support support_{};
  Tensors last_{};     // of the last forward
  bool fits_ = false;  // the last forward's support is known to be stored
};

}  // namespace splash::gpu::entmax
