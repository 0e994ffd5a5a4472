#pragma once
// Exact entmax attention, forward (Peters, Niculae, Martins 2019; the algorithm: docs/questions). Compiles
// without nvcc. Two independent paths: hopper/ (sm_90a), and portable/ for every GPU of compute
// capability 8.0 and newer, which also takes the problems that Hopper's path does not. enqueue_forward checks
// the arguments, chooses a path and calls it.

// The other folders: math/ (arithmetic), schedule/ (launches, and rows handed from kernel to kernel),
// arguments/ (masks and alphas in device memory), support/ (what forward leaves), backward/, rows/ (entmax of
// a matrix's rows).

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/arguments/mask_tables.h"
#include "gpu/entmax/support/notice.h"
#include "gpu/entmax/support/store_header.h"
#include "gpu/entmax/support/support.h"
#include "gpu/entmax/tuning.h"

namespace splash::gpu::entmax {

enum class ForwardPath { fastest, hopper, portable };  // fastest: hopper where it can run, else portable

// Whether Hopper's path takes the problem: bf16 or f16, up to 2^28 keys, all of them or the k_keep largest,
// which all heads share, any mask without positions and pairs (causal, with or without a window, packed
// sequences), no soft cap, no sinks, no dropout, no bias. Under k_keep, rows that list too many keys are left
// to the portable path's kernels: few rows, where k_keep is at most 80.
bool takes_hopper(const AttentionSpec& spec, Dtype dtype);

// hopper or portable, for a device of this compute capability (90: 9.0). Where `fastest` is wanted, the
// tuning may choose portable. given: whether there are tau_offsets, or a table of the mask's pairs that spec
// does not have. Throws Unsupported where
// hopper is wanted but does not take the problem or the device.
ForwardPath choose_path(const AttentionSpec& spec, Dtype dtype, ForwardPath wanted, int compute_capability,
                        const Tuning& tuning = {}, bool given = false);

// Whether forward on this path may leave rows out of the store: StoredRows::sparse.
bool may_leave_rows(const AttentionSpec& spec, ForwardPath path);

enum class StoredRows {
  all,
  sparse,  // on Hopper's path, all but those with broad supports (unstored_rows): the rows of the dense path,
           // and rows whose entries would cost backward more than dense products (support/unstored.h).
           // Backward computes both so. On the portable path and under k_keep, all
};

// Device addresses, 16-byte aligned; q, out: [batch, q_heads, q_len, head_dim]; k, v: [batch, kv_heads,
// kv_len, head_dim], all of one dtype. A value that is not finite reaches the rows that attend to it. On
// Hopper's path it may also make other rows of the same tile NaN, as in dense attention.
struct ForwardArguments {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  const float* alpha = nullptr;  // as many as spec.normalizer.alpha has entries; their values are read here
  DeviceMask mask{};             // spec.mask's tables; those of pairs count without spec's, too
  const int* head_k_keep = nullptr;  // [q_heads], required where spec.selection.head_k_keep is not empty;
                                     // their values are read here; below 1: all keys
  // [batch, q_heads, q_len], or null. Where not null, thresholds are given instead of solved for, as offsets
  // to each row's largest z (cpu_ref/attention/given_threshold.h); tau receives them. Portable path only.
  const float* tau_offsets = nullptr;
  const float* sinks = nullptr;  // [q_heads], required where spec.sinks is not empty; their values are read
                                 // here, -inf: none, NaN or +inf: NaN rows. Portable path only
  const uint64_t* dropout_seed = nullptr;  // [1], required where spec.dropout drops: read in spec's place
  const float* bias = nullptr;  // [q_heads, distances], required where spec has a bias; its values are read
                                // here, in units of scores. Portable path only
  float* tau = nullptr;  // [batch, q_heads, q_len] in units of z: +inf for rows without a key and a sink, NaN
                         // for rows with a score of NaN or +inf; or null
  Support support{};     // where columns is null, nothing is stored
  StoredRows stored = StoredRows::all;  // rows left out have an offset of -1 and a count of 0
  // Where rows are left out, the header of the store that support is of; else begin_store writes it before.
  StoreBegin begin{};
  NoticeWord notice{};  // tells the host how many entries were to be stored
  // Where the rows left out are listed: [batch * q_heads, q_len], [batch * q_heads]; null: in the workspace.
  int *unstored_queries = nullptr, *unstored_counts = nullptr;
  void* workspace = nullptr;  // forward_workspace_bytes, 256-byte aligned, contents undefined
  StreamHandle stream = nullptr;
  ForwardPath path = ForwardPath::fastest;
  Tuning tuning{};  // not looked up: see tuned_for
};

// Bytes, enough for either path. Hopper's: 12.5 bytes per query row, 4 per 128 keys, for bf16 a copy of k,
// and where a row sees n > 4096 keys copies of some: per head as many of every n as a block samples
// (sampled_keys of problem.h), or a thirty-second, whichever is more; and up to 72 MiB for lists, 144 of more
// than 32768 keys. The portable path's: 4.125 bytes per query row. Under k_keep Hopper's path takes both.
int64_t forward_workspace_bytes(const AttentionSpec& spec, Dtype dtype, const Tuning& tuning = {});

// The rows that StoredRows::sparse leaves out, for backward. They lie in args.unstored_queries and
// unstored_counts; where these are null, in the workspace until the next forward. None on the portable path.
UnstoredRows unstored_rows(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args);

// Forward takes entmax with an alpha of 1.01 to 2 over all keys or the k_keep largest of each row, any mask,
// a scale above 0, any soft cap, sinks, any dropout, a bias of distances (up to 2^28 queries and keys), bf16,
// f16 or f32, head_dim a multiple of 8 up to 256. Throws Unsupported where spec or dtype is another,
// InvalidArgument where spec contradicts itself.
void require_forward(const AttentionSpec& spec, Dtype dtype);

// Enqueues the kernels and nothing else (hopper/forward.h, portable/problem.h). Throws as require_forward and
// choose_path do; InvalidArgument where tables of the mask or of k_keep, sinks, a bias or dropout's seed are
// missing or the tuning is not allowed; DeviceError where a launch fails.
void enqueue_forward(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args);

}  // namespace splash::gpu::entmax
