// Running maximum and sum in registers, carried from step to step (source 001, section 2: 10 to 15 %, claim
// S1.2). The three broadcast temporaries [rows, lanes] remain.
//
// Predicted: rung 0 moves 11 arrays of 16 KiB per step. Six of them, the reads and writes of m and l, go: 770
// of some 8000 cycles, 10 %.

#include "gpu/ladders/kascade/sequential.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

struct BroadcastSoftmax {
  static constexpr int kRows = 128, kKeys = 128;
  struct Shared {
    float next_largest[kRows][kLanePitch], step_sum[kRows][kLanePitch], next_sum[kRows][kLanePitch];
  };

  __device__ BroadcastSoftmax(Shared& shared, int row) : shared_(shared), row_(row) {}

  template <class Clock>
  __device__ void step(float (&s)[kKeys / 8][4], float (&o)[kDim / 8][4], float scale, Clock& clock) {
    const int column = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_ + 8 * half;
      const float largest = fmaxf(state_[half].largest, largest_of_row<kKeys>(s, half));
      clock.end(Phase::softmax);
      broadcast(shared_.next_largest, row, largest);
      __syncwarp();
      const float next = shared_.next_largest[row][column];
      clock.end(Phase::broadcasts);
      float shift;
      const float factor = state_[half].raise(next, scale, shift);
      const float sum = quad_sum(exponentiate_row<kKeys>(s, half, scale, shift));
      clock.end(Phase::softmax);
      broadcast(shared_.step_sum, row, sum);
      __syncwarp();
      for (int i = 0; i < kLanes; i += 4)
        shared_.next_sum[row][column + i] = shared_.step_sum[row][column + i] + factor * state_[half].sum;
      __syncwarp();
      state_[half].sum = shared_.next_sum[row][column];
      clock.end(Phase::broadcasts);
      scale_row(o, half, factor);
    }
    __syncwarp();  // before the next step overwrites what other lanes still read
  }

  __device__ float sum(int half) const {
    return state_[half].sum;
  }

 private:
  Shared& shared_;
  int row_;
  RowState state_[2];
};

const Variant kVariant{.ladder = "kascade",
                       .rung = 1,
                       .name = "register-state",
                       .idea = "running maximum and sum stay in registers from step to step",
                       .finding = "9.0 ms at 32k: 1.10 times (1.09 at 8k), the low end of what was promised.",
                       .predicted = {.over = "0-scratch-state", .low = 1.10, .high = 1.15, .claim = "S1.2"},
                       .limits = limits_of({.compute_capability = 80}),
                       .plan = plan_sequential<BroadcastSoftmax>,
                       .launch = launch_sequential<BroadcastSoftmax>,
                       .trace = trace_sequential,
                       .profile = profile_sequential<BroadcastSoftmax>()};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
