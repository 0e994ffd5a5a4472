#pragma once
// Kascade's anchor pass (arXiv 2512.16391): for every tile of 32 tokens x the query heads of a key head, the
// keys whose softmax probabilities, summed over the tile, are largest. Exact: two dense passes over the
// scores on tensor cores (each row's normaliser, then the sums), and a radix selection. sm_90a. Compiles
// without nvcc.
//
//   const AnchorPass anchor(spec, Dtype::bf16, {.share = 0.1}, stream);
//   anchor.enqueue(q, k);                        // as often as wanted
//   spec.selection = anchor.to_host();           // Selection shared_keys, for any rung of the ladder

#include "gpu/engine/tensor.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::kascade {

struct AnchorOptions {
  double share = 0.1;  // keys kept of those that the tile's last query sees, rounded up: 0 < share <= 1
  int64_t k = 0;       // or so many, as far as that query sees as many; 0: by the share
  int64_t workspace_limit = int64_t{2} << 30;  // bytes; tiles are worked on in as many slabs as it takes
};

class AnchorPass {
 public:
  // Takes softmax over float16 or bfloat16 with a head_dim of at most 128, causal or no mask; spec.selection
  // is not looked at. Allocates everything. Throws InvalidArgument, Unsupported (what is taken) and
  // DeviceError.
  AnchorPass(const AttentionSpec& spec, Dtype dtype, const AnchorOptions& options, const Stream& stream);

  // q: [batch, q_heads, q_len, head_dim]; k: [batch, kv_heads, kv_len, head_dim]; contiguous, 16-byte
  // aligned. Only launches. Where sums are equal the lower key is kept first; a NaN row of the softmax makes
  // the sums of its tile NaN, which count as largest.
  void enqueue(const DeviceTensorView& q, const DeviceTensorView& k) const;

  int64_t k_keep() const { return k_keep_; }
  // What the last enqueue left, as Arguments have it: [batch, kv_heads, tiles, k_keep], -1 behind the last;
  // [.., tiles].
  const int32_t* key_indices() const { return static_cast<const int32_t*>(key_indices_.data()); }
  const int32_t* key_counts() const { return static_cast<const int32_t*>(key_counts_.data()); }
  Selection to_host() const;  // waits

  int64_t workspace_bytes() const { return pooled_.bytes() + normalizers_.bytes(); }

 private:
  AttentionSpec spec_;
  Dtype dtype_;
  AnchorOptions options_;
  const Stream* stream_;
  int multiprocessors_ = 0, slab_ = 0;  // lists a slab
  int64_t k_keep_ = 0;
  DeviceBuffer key_indices_, key_counts_, normalizers_, pooled_;
};

}  // namespace splash::gpu::kascade
