#pragma once
// Exact entmax attention, forward (Peters, Niculae, Martins 2019; the algorithm: docs/questions). Compiles
// without nvcc.

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/support.h"

namespace splash::gpu::entmax {

enum class StoredRows {
  all,
  sparse,  // all but those with broad supports (unstored_rows): they take dense products backward too
};

// Device addresses, 16-byte aligned; q, out: [batch, q_heads, q_len, head_dim]; k, v: [batch, kv_heads,
// kv_len, head_dim], all of one dtype.
struct ForwardArguments {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  const float* alpha = nullptr;  // as many as spec.normalizer.alpha has entries; their values are read here
  float* tau = nullptr;  // [batch, q_heads, q_len] in units of z, +inf for rows without a key; or null
  Support support{};     // where columns is null, nothing is stored
  StoredRows stored = StoredRows::all;  // rows left out have an offset of -1 and a count of 0
  void* workspace = nullptr;            // forward_workspace_bytes, 256-byte aligned, contents undefined
  StreamHandle stream = nullptr;
};

// 8.25 bytes a query row, 4 for each 128 keys, and for bf16 a copy of k.
int64_t forward_workspace_bytes(const AttentionSpec& spec, Dtype dtype);

// The rows that StoredRows::sparse leaves out, for backward: they lie in the workspace until the next
// forward.
UnstoredRows unstored_rows(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& arguments);

// Forward takes entmax with 1 < alpha <= 2 over all keys, no mask or a causal one, a scale above 0, bf16 or
// f16, head_dim a multiple of 8 up to 256. Throws Unsupported where spec or dtype is another, InvalidArgument
// where spec contradicts itself.
void require_forward(const AttentionSpec& spec, Dtype dtype);

// Enqueues the kernels and nothing else: one that prepares the keys, one that screens all rows, one for the
// few rows that outgrew its lists, one for rows with broad supports. Throws as require_forward does;
// DeviceError where a launch fails.
void enqueue_forward(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& arguments);

}  // namespace splash::gpu::entmax
