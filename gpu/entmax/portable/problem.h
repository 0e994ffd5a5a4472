#pragma once
// The portable path (sm_80 and newer): its kernels and their arguments, passed by value. It does not depend
// on Hopper's path. Compiles without nvcc.
//
//   screen_kernel    Q, K, V          -> output, tau, support of most rows, all or listed ones; broad_masks
//   gather           broad_masks      -> rows
//   stream_kernel    rows, Q, K, V    -> output, tau, support of these rows, whatever their support
//
// screen_kernel lists, in one pass over the keys, each row's pairs above a certified lower bound of tau, and
// computes tau and output from these alone. stream_kernel finds tau by passes over the keys that store no
// score; one more pass gives the output. Exactly one of the two writes each row. tiles.cuh says who writes
// the shared memory of stages and queries, and when; lists.cuh says so for the lists.
//
// Scores are products of the inputs in float32: by mma.sync with float32 sums for 16-bit types, by fused
// multiply-adds for float32, one head dimension after the other. Both kernels compute them by the same
// instructions, so a pair has the same score in both. The error of a float32 score is at most
// head_dim 2^-24 |q| |k|, like that of a plain loop. Where scores are capped or have a bias, all that follows
// sees the capped ones with their bias.

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "core/round.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/arguments/distance_bias.h"
#include "gpu/entmax/arguments/dropout.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax::portable {

// Of the base, broad_masks marks the rows that screen_kernel defers to stream_kernel; rows lists them.
struct PortableProblem : ForwardProblem {
  const int* head_k_keep = nullptr;    // [q_heads]: instead of k_keep; below 1: all keys
  const float* tau_offsets = nullptr;  // [heads, q_len]: thresholds are given
  float cap = 0;                       // of scores, in units of <q, k>; 0: none
  const float* sinks = nullptr;        // [q_heads], as spec has them: scaled scores
  DeviceDropout dropout{};
  DeviceBias bias{};
};

struct Kernel {
  const void* function = nullptr;  // of (PortableProblem)
  int queries = 0, threads = 0, shared_bytes = 0;
};
Kernel screen_kernel_of(Dtype dtype, int64_t head_dim);
Kernel stream_kernel_of(Dtype dtype, int64_t head_dim);

constexpr int kTileKeys = 64;

// Where the parts of the workspace lie: bytes from its start, multiples of 256.
struct PortableWorkspace {
  explicit PortableWorkspace(const AttentionShape& s) {
    const int64_t heads = s.batch * s.q_heads;
    masks = 0;
    queries = round_up(heads * row_mask_words(static_cast<int>(s.q_len)) * int64_t{sizeof(uint32_t)}, 256);
    counts = queries + round_up(s.rows() * int64_t{sizeof(int)}, 256);
    bytes = counts + round_up(heads * int64_t{sizeof(int)}, 256);
  }
  int64_t masks, queries, counts, bytes;
};

// Fills in all but the pointers into the workspace.
PortableProblem problem_of(const AttentionSpec& spec, const ForwardArguments& arguments);

int64_t blocks_of(const Kernel& kernel, const AttentionShape& shape);

// Enqueues both kernels and gather_rows between them. rows: those that are computed; null: all. spec and args
// have passed enqueue_forward's checks. Throws DeviceError where a launch fails.
void enqueue(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args, const RowList& rows = {});

}  // namespace splash::gpu::entmax::portable
