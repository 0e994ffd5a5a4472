#pragma once
// Turns the rows that a kernel deferred, a bit per row, into lists of queries for the next kernel. Compiles
// without nvcc.

#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"
#include "gpu/entmax/support/notice.h"

namespace splash::gpu::entmax {

// A list that is made of masks, as broad_masks of the problem: per head the rows whose bits are set, rising,
// in queries [heads, q_len], and their number in counts [heads].
struct ListedMasks {
  const uint32_t* masks = nullptr;
  int *queries = nullptr, *counts = nullptr;
};

// Enqueues making a list of deferred rows and setting the problem's next_share to 0. Where `unstored` has
// masks (which have the bits of the deferred rows, too), also the list of rows that backward computes
// densely: of a head in which they are enough (support/unstored.h) all that these masks name, else the
// deferred ones. Such rows get an offset of -1 and a count of 0 in `support`, and the host is told how many
// entries the others have. Throws DeviceError where the launch fails.
void gather_rows(const ForwardProblem& problem, const ListedMasks& deferred, StreamHandle stream,
                 const ListedMasks& unstored = {}, const Support& support = {},
                 const NoticeWord& notice = {});

// Enqueues telling the host how many entries the rows before have; nothing where it does not ask.
void tell_entries(const Support& support, const NoticeWord& notice, StreamHandle stream);

}  // namespace splash::gpu::entmax
