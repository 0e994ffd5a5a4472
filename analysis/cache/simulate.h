#pragma once
// Runs the kernels of a call through simulated caches, block by block as a GPU starts them: bytes asked of L1
// and L2, bytes found there, bytes of DRAM.

#include <vector>

#include "analysis/cache/cache.h"
#include "core/block_trace.h"

namespace splash::analysis {

struct KernelRun {
  const KernelTrace& trace;
  int64_t at_once = 1;   // pieces of work that the GPU has under way
  int64_t l1_bytes = 0;  // of a multiprocessor, beside the shared memory of the blocks that it holds
};

struct CallTraffic {
  int64_t asked = 0;    // by the blocks, bytes in sectors
  int64_t l1_hits = 0;  // of those, found in L1; the others are asked of L2
  MemoryTraffic memory{};
  int64_t dram_apart = 0;  // bytes read and written, were L2 emptied before each kernel, as profilers do
  int64_t lines = 0;       // looked up, in L1 or L2
};

// Runs the kernels one after the other. KernelRun::at_once pieces run at a time; each takes one step per
// turn, or waits for the turn (decision 0020), and the next piece starts when one ends. L2 is empty at first,
// so DRAM bytes are those of a first call. Writes bypass L1. Throws InvalidArgument where a number is not
// positive.
CallTraffic simulate(const std::vector<KernelRun>& kernels, int multiprocessors, const L2Size& l2);

// Distinct bytes that are touched.
struct WorkingSet {
  int64_t block = 0;      // by that block (or cluster) of a full wave that touches most
  int64_t wave = 0;       // by all blocks of a full wave
  int64_t wave_read = 0;  // of those, read
};
WorkingSet working_set(const KernelRun& kernel);

// Whether L2 holds what a full wave reads until all its blocks have read it, so that each byte comes from
// DRAM once. What both partitions read is held twice.
bool fits(const WorkingSet& set, const L2Size& l2);

}  // namespace splash::analysis
