#pragma once
// How many blocks of a kernel a multiprocessor holds at once, and how many waves of them a launch takes.

#include <cstdint>

namespace splash::analysis {

constexpr int kWarp = 32;  // threads

// What a GPU's multiprocessors offer (CUDA C++ Programming Guide, technical specifications per compute
// capability).
struct Multiprocessors {
  int count = 0;
  int warps = 0, blocks = 0;  // resident at once, on each
  int registers = 0;          // 32-bit, of each
  int64_t shared_bytes = 0;   // of each, what the driver keeps for every block included
  int exponentials = 0;       // results a clock, of each, as the vendor prints it; 0: not known
};

// As a report's columns have it.
struct KernelUse {
  int64_t blocks = 1;        // of the launch
  int threads = 32;          // a block
  int registers = 0;         // a thread
  int64_t shared_bytes = 0;  // a block, static and dynamic
};

enum class OccupancyLimit { warps, blocks, registers, shared_memory };
const char* to_string(OccupancyLimit limit);  // "warps", "blocks", "registers", "shared memory"

struct Occupancy {
  int blocks = 0;                                // a multiprocessor holds at once; 0: not one fits
  OccupancyLimit limit = OccupancyLimit::warps;  // what admits no more; where several do, the first of them
  double warps_share = 0;                        // resident warps / the most there can be
  double waves = 0;       // of the launch: its blocks / those that all multiprocessors hold at once
  double last_wave = 0;   // share of the last wave's places that are filled, in (0, 1]
  double wave_yield = 0;  // waves / waves begun: what is left when blocks of equal length end together
};

// The rules of CUDA's occupancy calculator for compute capabilities 8.0 to 9.0: registers are given out 256 a
// warp, to each quarter of a multiprocessor; shared memory 128 bytes at a time, with 1 KB kept for each
// block. Throws InvalidArgument where a number is not positive (registers and shared_bytes: negative).
Occupancy occupancy_of(const Multiprocessors& machine, const KernelUse& kernel);

}  // namespace splash::analysis
