#pragma once
// Exact entmax attention, backward. In: the support that forward stored (support/support.h), Q, K, V, dO.
// Out: dQ, dK, dV, dL/dalpha. Rows with broad supports, which forward does not store, are computed as dense
// products (dense/). The same bits in every run, wherever forward put the rows. problem.h lists the kernels,
// their order, and what each leaves for the next. Compiles without nvcc.
//
//   const int64_t bytes = backward_workspace_bytes(spec, Dtype::bf16, support.capacity);
//   enqueue_backward(spec, Dtype::bf16, arguments);   // as often as wanted, also inside a graph's capture
//
// Precision: for bf16 and f16, dK and dV are summed from p and ds that were rounded to 16 bits of precision
// or more, where at most 2^16 rows may attend to a key (backward/entry.cuh); dK and dV themselves are rounded
// to 9 (bf16) or 12 bits (f16). All else is float. Rows whose support is empty or did not fit the store add
// nothing: their dQ is zero. Unstored rows (bf16 or f16, sm_90, a head_dim of at most kMostUnstoredHeadDim)
// are as precise as tau in float: where |z| passes 10^4, tau's rounding shows in p.

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/arguments/mask_tables.h"
#include "gpu/entmax/support/support.h"
#include "gpu/entmax/tuning.h"

namespace splash::gpu::entmax {

// Device addresses, 16-byte aligned; q, d_out, d_q: [batch, q_heads, q_len, head_dim]; k, v, d_k, d_v:
// [batch, kv_heads, kv_len, head_dim], all of one dtype.
struct BackwardArguments {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *d_out = nullptr;
  Support support{};
  UnstoredRows unstored{};       // forward's, where it stored StoredRows::sparse
  DeviceMask mask{};             // forward's, read where there are unstored rows
  const float* alpha = nullptr;  // as many as spec.normalizer.alpha has entries; their values are read here
  const float* tau_offsets = nullptr;      // forward's, or null; taken as constants (straight-through)
  const float* tau = nullptr;              // forward's, required where spec has a soft cap or sinks
  const float* sinks = nullptr;            // forward's, required where spec has sinks
  const uint64_t* dropout_seed = nullptr;  // forward's, required where spec.dropout drops
  const float* bias = nullptr;             // forward's, required where spec has a bias
  void *d_q = nullptr, *d_k = nullptr, *d_v = nullptr;
  float* d_alpha = nullptr;  // [q_heads]: dL/dalpha summed over batch and rows; or null
  float* d_sinks = nullptr;  // [q_heads]: dL/dsink, alike; or null
  float* d_bias =
      nullptr;  // [q_heads, distances]: dL/dbias, alike; NaN for a head whose rows have NaN; or null
  const StreamPoint* d_q_done = nullptr;  // recorded on the stream where d_q is written; or null
  void* workspace = nullptr;              // backward_workspace_bytes, 256-byte aligned, contents undefined
  StreamHandle stream = nullptr;
  Tuning tuning{};  // not looked up: see tuned_for
};

// The workspace's bytes: 11.1 (float32: 15.1) per entry of the capacity, one more where head_dim is above 64
// and three where it is above 128, 20 per query row and 4 per key and slice of its rows (RowSlices,
// problem.h) over all heads; with sinks 4 per query row; with a bias 4 per entry and 8 per bias; with
// unstored rows also 4 head_dim + 20 per query row. Throws InvalidArgument as enqueue_backward does.
int64_t backward_workspace_bytes(const AttentionSpec& spec, Dtype dtype, int64_t capacity,
                                 bool with_unstored_rows = false, const Tuning& tuning = {});

// Enqueues the kernels and nothing else. Of spec it reads the shape, the scale, the soft cap, whether there
// are sinks, the bias's distances, dropout's rate, the number of alphas (the values, 1.01 <= alpha <= 2, come
// from device memory) and, for unstored rows, the mask. Throws DeviceError where a launch fails, and
// InvalidArgument
// - where dtype is f64, or head_dim is no multiple of 8 up to 256;
// - where tau, sinks, dropout_seed, the bias or a table of the mask is missing;
// - where unstored rows have a head_dim or dtype that they do not take, or come with tau_offsets, a soft cap,
//   sinks, dropout or a bias;
// - where queries, keys (over all heads) or capacity reach 2^31, or the tuning is not allowed.
void enqueue_backward(const AttentionSpec& spec, Dtype dtype, const BackwardArguments& arguments);

}  // namespace splash::gpu::entmax
