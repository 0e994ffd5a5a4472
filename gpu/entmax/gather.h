#pragma once
// The rows that a kernel left, as lists of queries for the next one. Compiles without nvcc.

#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

// Of each head the rows whose bits in `masks` are set (one of problem's), rising: into queries, [heads,
// q_len], and their number into counts, [heads]. Where `unstored` has offsets, those rows get -1 there, and a
// count of 0.
void gather_rows(const Problem& problem, const uint32_t* masks, int* queries, int* counts,
                 StreamHandle stream, const Support& unstored = {});

}  // namespace splash::gpu::entmax
