#pragma once
// Profiles the sequential rungs by phase, as document 001 wants: each warp adds up the cycles between the
// ends of its phases. The measured kernels take a NoClock, which compiles to no instruction.

#include <cstdint>

namespace splash::gpu::kascade {

enum class Phase { loads, barriers, scores, softmax, broadcasts, values };
constexpr int kPhases = 6;
constexpr const char* kPhaseNames[kPhases] = {"loads of K and V", "waiting at barriers", "Q K^T",
                                              "softmax",          "broadcasts, scratch", "P V"};

struct NoClock {
  __device__ void start() {}
  __device__ void end(Phase) {}
  template <class Values>
  __device__ void hold(Values&) {}
};

class PhaseClock {
 public:
  __device__ void start() { last_ = now(); }

  __device__ void end(Phase phase) {
    const uint64_t time = now();
    cycles_[static_cast<int>(phase)] += time - last_;
    last_ = time;
  }

  // Products are not moved across an end by which their sums are held.
  template <int kRows>
  __device__ void hold(float (&sums)[kRows][4]) {
#pragma unroll
    for (auto& block : sums) {
#pragma unroll
      for (float& sum : block) asm volatile("" : "+f"(sum));
    }
  }

  // One lane per warp adds the warp's cycles to the sums over all warps.
  __device__ void add_to(unsigned long long* sums) const {
    if (threadIdx.x % 32 != 0) return;
    for (int i = 0; i < kPhases; ++i) atomicAdd(sums + i, static_cast<unsigned long long>(cycles_[i]));
  }

 private:
  __device__ static uint64_t now() {
    uint64_t time;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(time)::"memory");
    return time;
  }

  uint64_t last_ = 0, cycles_[kPhases] = {};
};

}  // namespace splash::gpu::kascade
