#pragma once
// The support as a sparse matrix of probabilities, to look at or to multiply with: the rows of all heads one
// after another, keys rising inside each row. Compiles without nvcc.

#include "core/attention_spec.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/support/support.h"

namespace splash::gpu::entmax {

// In device memory; rows = batch * q_heads * q_len.
struct CsrMatrix {
  int64_t* row_offsets = nullptr;  // [rows + 1]: the last is the number of entries
  int32_t* columns = nullptr;      // [entries]: keys, from 0 in each head
  float* probabilities = nullptr;  // [entries]: of each row with a key they sum to 1
};

int64_t csr_workspace_bytes(const AttentionSpec& spec, int64_t entries);

// Enqueues the conversion of what a forward with StoredRows::all has stored. entries: at least as many as it
// wanted to store (*support.used), and what `matrix` has room for. Rows that are not stored, for want of
// room, become empty. alpha: forward's, in device memory. workspace: csr_workspace_bytes, 256-byte aligned.
// Throws InvalidArgument where entries is negative, DeviceError where a launch fails.
void enqueue_csr(const AttentionSpec& spec, const float* alpha, const Support& support, int64_t entries,
                 const CsrMatrix& matrix, void* workspace, StreamHandle stream);

}  // namespace splash::gpu::entmax
