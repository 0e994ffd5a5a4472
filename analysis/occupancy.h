#pragma once
// How many blocks of a kernel a multiprocessor holds at once, and how many waves of them a launch takes.

#include <cstdint>

namespace splash::analysis {

constexpr int kWarp = 32;          // threads per warp
constexpr double kSchedulers = 4;  // per multiprocessor: each issues up to one instruction per cycle

// What a GPU's multiprocessors offer. Source: CUDA C++ Programming Guide, technical specifications per
// compute capability.
struct Multiprocessors {
  int count = 0;
  int warps = 0, blocks = 0;   // the most that are resident at once on one multiprocessor
  int registers = 0;           // 32-bit, per multiprocessor
  int64_t shared_bytes = 0;    // per multiprocessor, including what the driver keeps for every block
  int exponentials = 0;        // results per clock and multiprocessor, as the vendor prints it; 0: not known
  int64_t shared_unit = 128;   // to which the shared memory of a block is rounded up
  int64_t shared_kept = 1024;  // by the driver, for every block

  // The last two are others before compute capability 8.0.
  void share_as(int compute_capability) {
    if (compute_capability >= 80) return;
    shared_unit = 256;
    shared_kept = 0;
  }
};

// A kernel's launch and resources, as a report's columns have them.
struct KernelUse {
  int64_t blocks = 1;        // in the launch
  int threads = 32;          // per block
  int registers = 0;         // per thread
  int64_t shared_bytes = 0;  // per block, static and dynamic
};

enum class OccupancyLimit { warps, blocks, registers, shared_memory };
const char* to_string(OccupancyLimit limit);  // "warps", "blocks", "registers", "shared memory"

struct Occupancy {
  int blocks = 0;                                // resident blocks per multiprocessor; 0: not one fits
  OccupancyLimit limit = OccupancyLimit::warps;  // what prevents more; the first of them if several do
  double warps_share = 0;                        // resident warps / the most that fit
  double waves = 0;       // blocks of the launch / blocks that all multiprocessors hold at once
  double last_wave = 0;   // share of the last wave's places that are filled, in (0, 1]
  double wave_yield = 0;  // waves / waves begun: what is left when blocks of equal length end together
};

// The rules of CUDA's occupancy calculator for compute capabilities 8.0 to 9.0. Each quarter of a
// multiprocessor has its own registers and allocates them to warps in units of 256. Shared memory is
// allocated in units of 128 bytes, plus 1 KB kept for each block. Throws InvalidArgument if a number is not
// positive (registers and shared_bytes: if negative).
Occupancy occupancy_of(const Multiprocessors& machine, const KernelUse& kernel);

}  // namespace splash::analysis
