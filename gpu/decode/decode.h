#pragma once
// One step of exact entmax decoding over a paged cache: each query attends to all keys of its sequence, and
// only the keys that a certified bound cannot exclude are read whole. Compiles without nvcc.
//
//   decode::Cache cache{...};                          // pools of pages, and room for their low-bit copies
//   decode::fill(cache, table, nullptr, pages, stream);   // after a prefill: copies of all full pages
//   decode::decode(cache, table, inputs, outputs, workspace, bytes, stream);
//
// The result is entmax over all keys of the sequence: for every batch, query head h and query i of q_len,
// over the keys j < length - (q_len - 1 - i) that its window holds, p = entmax_alpha(scale <q, k_j>) and out
// = sum_j p_j v_j. The same bits every time, whatever the order in which the GPU works, and for any number of
// bits of the copy.
//
// Errors. InvalidArgument: sizes or strides that no cache has. Unsupported: what these kernels do not take. A
// sequence whose length exceeds its table, or whose table names a page outside the pool, gets NaN rows,
// because lengths and tables are in device memory. So does a row with NaN among its scores, an alpha outside
// [1.01, 2], or a scale (of fp8 keys, too) that is not positive.

#include <cstdint>

#include "gpu/decode/kernels.h"
#include "gpu/decode/problem.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::decode {

struct StepInputs {
  RowTensor q{}, out{};        // [batch, q_len, q_heads, head_dim] in Cache::dtype
  int q_heads = 1, q_len = 1;  // q_heads: a multiple of the cache's kv_heads; q_len: 1 ... 16
  const float *alpha = nullptr, *scale = nullptr;  // in device memory, [1] or [q_heads]
  int alphas = 1, scales = 1;
  int window = 0, sinks = 0;  // a query sees its last `window` keys, itself among them, and the first `sinks`
                              // (at most 16) of the sequence; window 0: all keys
  // [batch, kv_heads] in device memory, 0 before the first step, or null: which rows had a broad support in
  // the last step, as bits. These read all keys at once in the next one. It changes no result.
  uint32_t* broad = nullptr;
  // [batch, kv_heads, kRecentWords] in device memory, 0 before the first step, or null: keys that weighed
  // most in the last step. With them the next one has good bounds before it screens. Whatever it holds, it
  // changes no result. Steps with more than kRows rows per key head leave it alone, and so do caches without
  // copies, whose steps it would not make shorter.
  int32_t* recent = nullptr;
};

// Bytes of the low-bit copies of all pages; 0 without copies. Throws as check_cache does.
int64_t low_bit_bytes(const Cache& cache);

// Throws InvalidArgument or Unsupported with one sentence.
void check_cache(const Cache& cache);
void check_step(const Cache& cache, const PageTable& table, const StepInputs& inputs);

// Bytes of device memory that decode() needs for these sizes on the current device; the contents need not be
// kept between steps.
int64_t workspace_bytes(const Cache& cache, const PageTable& table, const StepInputs& inputs);

// Enqueues the low-bit copies of the pages that end after from_lengths (null: 0) and at or before
// table.lengths. most_pages: how many pages one sequence may fill by it, at most (1 for a step that adds up
// to page_size keys). A page that is reopened (keys removed, others written) is filled again once it is full
// again. Without copies it does nothing.
void fill(const Cache& cache, const PageTable& table, const int32_t* from_lengths, int most_pages,
          StreamHandle stream);

// Enqueues writing the keys and values of `tokens` new tokens, [batch, tokens, kv_heads, head_dim] as a
// RowTensor in Cache::dtype, behind table.lengths, which the caller then raises. Tokens for which the table
// has no page are dropped. An fp8 cache gets them divided by its scales and rounded to the nearest, 448 at
// most; NaN stays NaN.
void append(const Cache& cache, const PageTable& table, const RowTensor& keys, const RowTensor& values,
            int tokens, StreamHandle stream);

// Enqueues one step. workspace: 256-byte aligned, at least workspace_bytes. Nothing waits for the device and
// nothing is allocated, so a CUDA graph can capture it; lengths and pages are read when it runs.
void decode(const Cache& cache, const PageTable& table, const StepInputs& inputs, const StepOutputs& outputs,
            void* workspace, int64_t bytes, StreamHandle stream, const Launched& launched = {});

}  // namespace splash::gpu::decode
