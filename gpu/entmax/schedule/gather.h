#pragma once
// The rows that a kernel deferred, as lists of queries for the next kernel. Compiles without nvcc.

#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

// Lists, per head, the rows whose bits are set in `masks` (one of problem's), rising: queries [heads, q_len],
// and their number, counts [heads]. Where `unstored` has offsets, these rows get an offset of -1 and a count
// of 0.
void gather_rows(const ForwardProblem& problem, const uint32_t* masks, int* queries, int* counts,
                 StreamHandle stream, const Support& unstored = {});

}  // namespace splash::gpu::entmax
