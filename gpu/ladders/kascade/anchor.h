#pragma once
// Kascade's anchor pass (arXiv 2512.16391). A tile is 32 tokens x the query heads that share a key head. For
// every tile the pass finds the keys whose softmax probabilities, summed over the tile, are largest. It is
// exact: two dense passes over the scores on tensor cores (each row's normaliser, then the sums), and a radix
// selection. sm_90a. Compiles without nvcc.
//
//   const AnchorPass anchor(spec, Dtype::bf16, {.share = 0.1}, stream);
//   anchor.enqueue(q, k);                        // as often as wanted
//   spec.selection = anchor.to_host();           // Selection shared_keys, for any rung of the ladder

#include "gpu/engine/tensor.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::kascade {

struct AnchorOptions {
  double share = 0.1;  // share of the keys that the tile's last query sees, rounded up; 0 < share <= 1
  int64_t k = 0;       // keys to keep, at most all that this query sees; 0: use the share
  int64_t workspace_limit = int64_t{2} << 30;  // bytes; the tiles are split into slabs that fit
};

class AnchorPass {
 public:
  // Takes softmax over float16 or bfloat16 with a head_dim of at most 128, with a causal mask or none.
  // Ignores spec.selection. Allocates all memory that enqueue() needs. Throws InvalidArgument, Unsupported
  // (the message says what is taken) and DeviceError.
  AnchorPass(const AttentionSpec& spec, Dtype dtype, const AnchorOptions& options, const Stream& stream);

  // q: [batch, q_heads, q_len, head_dim]; k: [batch, kv_heads, kv_len, head_dim]; contiguous, 16-byte
  // aligned. Only launches kernels; does not wait. Among equal sums the lower key is kept first. A NaN row of
  // the softmax makes the sums of its tile NaN, which count as largest.
  void enqueue(const DeviceTensorView& q, const DeviceTensorView& k) const;

  int64_t k_keep() const { return k_keep_; }
  // Results of the last enqueue, in the layout of Arguments. key_indices: [batch, kv_heads, tiles, k_keep],
  // padded with -1 after the last key; key_counts: [batch, kv_heads, tiles].
  const int32_t* key_indices() const { return static_cast<const int32_t*>(key_indices_.data()); }
  const int32_t* key_counts() const { return static_cast<const int32_t*>(key_counts_.data()); }
  Selection to_host() const;  // waits for the copy to the host

  int64_t workspace_bytes() const { return pooled_.bytes() + normalizers_.bytes(); }

 private:
  AttentionSpec spec_;
  Dtype dtype_;
  AnchorOptions options_;
  const Stream* stream_;
  int multiprocessors_ = 0, slab_ = 0;  // slab_: lists per slab
  int64_t k_keep_ = 0;
  DeviceBuffer key_indices_, key_counts_, normalizers_, pooled_;
};

}  // namespace splash::gpu::kascade
