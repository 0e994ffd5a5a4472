#pragma once
// Runs the kernels of a call through simulated caches, block by block in a GPU's order. Counts the bytes
// asked of L1 and L2, the bytes found there, and the bytes of DRAM.

#include <vector>

#include "analysis/cache/cache.h"
#include "core/block_trace.h"

namespace splash::analysis {

struct KernelRun {
  const KernelTrace& trace;
  int64_t at_once = 1;   // pieces of work (blocks or clusters) that run at the same time
  int64_t l1_bytes = 0;  // L1 per multiprocessor, without the shared memory of its resident blocks
};

struct CallTraffic {
  int64_t asked = 0;    // bytes that the blocks ask for, in whole sectors
  int64_t l1_hits = 0;  // of those, found in L1; the rest is asked of L2
  MemoryTraffic memory{};
  int64_t dram_apart = 0;  // bytes read and written if L2 is emptied before each kernel, as profilers do
  int64_t lines = 0;       // line look-ups, in L1 or L2
};

// Runs the kernels one after the other. KernelRun::at_once pieces run at a time. In each turn a piece takes
// one step or waits (decision 0020), and when a piece ends the next one starts. L2 is empty at first, so DRAM
// bytes are those of a first call. Writes bypass L1. Throws InvalidArgument if a number is not positive.
CallTraffic simulate(const std::vector<KernelRun>& kernels, int multiprocessors, const L2Size& l2);

// Distinct bytes that blocks touch.
struct WorkingSet {
  int64_t block = 0;      // of the block (or cluster) of a full wave that touches most
  int64_t wave = 0;       // of all blocks of a full wave together
  int64_t wave_read = 0;  // of those, read
};
WorkingSet working_set(const KernelRun& kernel);

// Whether L2 can hold what a full wave reads until all of its blocks have read it, so that each byte comes
// from DRAM once. Data that both partitions read is held twice.
bool fits(const WorkingSet& set, const L2Size& l2);

}  // namespace splash::analysis
