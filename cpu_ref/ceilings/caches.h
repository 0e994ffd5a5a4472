#pragma once
// The caches of the processor that this program runs on.

#include <cstdint>

namespace splash::cpu_ref {

// Bytes; 0 where the system does not tell.
struct Caches {
  int64_t l1 = 0, l2 = 0;  // data, of the first core; cores that share one count it each
  int64_t last = 0;        // of the level that is furthest from the core
};

// As Linux tells of cpu0 under /sys.
Caches caches();

}  // namespace splash::cpu_ref
