#pragma once
// Forward on Hopper (sm_90a, bf16 and f16): which kernels run, in which order, and what one leaves in the
// workspace for the next. Compiles without nvcc. Nothing here knows of the portable path.
//
//   prepare/    K                         -> half_keys, errors, high_norm_keys
//   screen/     Q, V, and these           -> output, tau, support of most rows; masks of the others, bounds
//   gather      broad_masks               -> rows; also the rows that are left to backward's dense products
//   dense/      rows, bounds, Q, K, V     -> output, tau, support of these rows; not under k_keep
//
// solve/ is the second half of the screening kernel: from lists of keys to tau, support and output.
//
// Exactly one kernel writes each row: the screening kernel writes the rows that it does not defer, the dense
// kernel the others. Under k_keep these are left to whoever calls. Each kernel waits for the whole previous
// kernel (schedule/launch.h) before it reads the workspace.

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/hopper/screen/forward_kernel.h"

namespace splash::gpu::entmax::hopper {

// Where the parts of the workspace lie: bytes from its start, multiples of 256.
struct HopperWorkspace {
  HopperWorkspace(const AttentionSpec& spec, Dtype dtype, const Tuning& tuning);

  int64_t bytes = 0, bounds, masks, queries, counts, errors, spilled, taken;
  int64_t unstored_masks, unstored_queries, unstored_counts;  // of rows that backward computes densely
  int64_t next_share;
  int spill_slots, spill_pairs;  // SpillSlots
  int64_t half_keys;             // -1: k itself
  int high_norm_per_segment, segment;
  int64_t high_norm_count = 0, high_norm_keys = 0;  // per key head, where segment is not 0
};

// Whether rows see ranges of keys (arguments/key_range.h): a window hides some, or sequences are packed.
bool has_ranges(const AttentionSpec& spec);

// Which screening kernels take the problem.
RowKeys row_keys(const AttentionSpec& spec);

// Blocks of the screening kernel: one per tile of queries.
int64_t screen_blocks(const ForwardKernel& kernel, const AttentionShape& shape);

// As entmax::unstored_rows, on this path.
UnstoredRows unstored_rows(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args);

// Enqueues the kernels. spec and args have passed what enqueue_forward checks. Returns the rows that are left
// to another path, in the workspace; none (null) where the dense kernel takes them.
RowList enqueue(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args);

}  // namespace splash::gpu::entmax::hopper
