#pragma once
// The caches of the processor that this program runs on.

#include <cstdint>

namespace splash::cpu_ref {

// In bytes; 0 if the system does not tell.
struct Caches {
  int64_t l1 = 0, l2 = 0;  // data caches of the first core; cores that share one each count it fully
  int64_t last = 0;        // the level farthest from the core
};

// As Linux describes cpu0 under /sys.
Caches caches();

}  // namespace splash::cpu_ref
