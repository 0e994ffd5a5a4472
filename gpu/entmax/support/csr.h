#pragma once
// The support as a sparse matrix of probabilities (CSR), for inspection or products: the rows of all heads
// one after another, keys rising inside each row. Compiles without nvcc.

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

// Bytes of enqueue_csr's workspace. Throws InvalidArgument where entries is negative.
int64_t csr_workspace_bytes(const AttentionSpec& spec, int64_t entries);

// Enqueues the conversion of what a forward with StoredRows::all has stored. entries: the room in `matrix`,
// at least as many as forward wanted to store (*support.used). Rows that did not fit the store become empty.
// alpha: forward's, in device memory. workspace: csr_workspace_bytes, 256-byte aligned.
// Throws InvalidArgument where entries is negative, DeviceError where a launch fails.
void enqueue_csr(const AttentionSpec& spec, const float* alpha, const Support& support, int64_t entries,
                 const CsrMatrix& matrix, void* workspace, StreamHandle stream);

}  // namespace splash::gpu::entmax
