#pragma once
// What cannot be in a profiler's table. Each is said with its likely cause, and nothing is cut to what could
// be.

#include <string>
#include <vector>

#include "analysis/profile_import.h"

namespace splash::analysis {

// One sentence each: counts below zero, shares over 1, bytes and FLOPs beyond what the time allows at the
// GPU's peaks, more instructions or passes than there are cycles, shares that contradict counts, more threads
// or registers than a block can have, a grid that does not fit. The likely cause is one of: the notation of
// numbers, the precision, the clock, another GPU, another launch.
std::vector<std::string> impossible(const ProfiledCase& profiled, const ProfiledGpu& gpu,
                                    const std::vector<Machine>& machines);

}  // namespace splash::analysis
