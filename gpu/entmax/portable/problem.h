#pragma once
// The portable path (sm_80 and newer): what its kernels take, by value, and its kernels. Compiles without
// nvcc.
//
//   screen_kernel    one pass over the keys for all rows: a list of the pairs above a certified bound for
//   each
//                    row, tau and the output from these alone
//   stream_kernel    the rows whose lists did not suffice, gathered: tau by passes over the keys that hold no
//                    score, then one pass for the output. Exact for any support
//
// Scores are products of the inputs in float32: by mma.sync with float32 sums for 16-bit types, by fused
// multiply-adds for float32, one head dimension after the other. Both kernels compute them by the same
// instructions, so a pair has the same score wherever it is met. A float32 score is off by at most
// head_dim 2^-24 |q| |k|, as that of a plain loop.

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/engine/round.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax::portable {

// broad_masks: the rows that screen_kernel leaves to stream_kernel; rows: these, gathered.
struct Problem : entmax::Problem {
  DeviceMask mask{};
  int k_keep = 0;                      // 0: all keys
  const int* head_k_keep = nullptr;    // [q_heads]: in its place, below 1: all keys
  const float* tau_offsets = nullptr;  // [heads, q_len]: thresholds are given
};

struct Kernel {
  const void* function = nullptr;  // of (Problem)
  int queries = 0, threads = 0, shared_bytes = 0;
};
Kernel screen_kernel_of(Dtype dtype, int64_t head_dim);
Kernel stream_kernel_of(Dtype dtype, int64_t head_dim);

constexpr int kTileKeys = 64;

// Where what the kernels hand on lies in the workspace: bytes from its start, multiples of 256.
struct Workspace {
  explicit Workspace(const AttentionShape& s) {
    const int64_t heads = s.batch * s.q_heads;
    masks = 0;
    queries = round_up(heads * row_mask_words(static_cast<int>(s.q_len)) * int64_t{sizeof(uint32_t)}, 256);
    counts = queries + round_up(s.rows() * int64_t{sizeof(int)}, 256);
    bytes = counts + round_up(heads * int64_t{sizeof(int)}, 256);
  }
  int64_t masks, queries, counts, bytes;
};

// All but what lies in the workspace.
Problem problem_of(const AttentionSpec& spec, const ForwardArguments& arguments);

int64_t blocks_of(const Kernel& kernel, const AttentionShape& shape);

// Enqueues both kernels and the gathering between them. The spec has passed require_forward, the arguments
// require_mask.
void enqueue(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args);

}  // namespace splash::gpu::entmax::portable
