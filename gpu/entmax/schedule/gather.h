#pragma once
// Turns the rows that a kernel deferred, a bit per row, into lists of queries for the next kernel. Compiles
// without nvcc.

#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

// Enqueues listing, per head, the rows whose bits are set in `masks` (broad_masks of the problem): the
// queries, rising, in queries [heads, q_len], and their number in counts [heads]. Where `unstored` has
// offsets, these rows get an offset of -1 and a count of 0 there. Throws DeviceError where the launch fails.
void gather_rows(const ForwardProblem& problem, const uint32_t* masks, int* queries, int* counts,
                 StreamHandle stream, const Support& unstored = {});

}  // namespace splash::gpu::entmax
