#pragma once
// The peak memory of a call, as Linux counts it.

#include <cstdint>
#include <functional>

namespace splash::experiments {

// Largest resident set during the call, minus the resident set before it, in bytes. NaN if the system does
// not tell (no /proc/self/clear_refs).
double peak_memory_of(const std::function<void()>& call);

}  // namespace splash::experiments
