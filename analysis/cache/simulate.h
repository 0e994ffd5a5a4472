#pragma once
// What the kernels of a call ask of the caches, block by block as a GPU starts them, and what of it DRAM has
// to deliver.

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

// Runs the kernels one after the other. As many pieces at a time as there is room for, each a step a turn but
// for the turns that it waits; where one ends, the next starts. DRAM's share is that of a first call, on an
// empty L2. What is written passes L1 by. Throws InvalidArgument where a number is not positive.
CallTraffic simulate(const std::vector<KernelRun>& kernels, int multiprocessors, const L2Size& l2);

// Bytes that are touched at all, each counted once.
struct WorkingSet {
  int64_t block = 0;      // by the block (or cluster) that touches most, of those of a full wave
  int64_t wave = 0;       // by all blocks of a full wave
  int64_t wave_read = 0;  // of those, read
};
WorkingSet working_set(const KernelRun& kernel);

// Whether what a full wave reads stays in L2 until all its blocks have read it: then each byte comes from
// DRAM once. What both partitions read lies there twice.
bool fits(const WorkingSet& set, const L2Size& l2);

}  // namespace splash::analysis
