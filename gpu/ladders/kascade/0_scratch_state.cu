// The document's TPU kernel as it stands (source 001). A block works on 128 keys at a time, and loads and
// products alternate. The running maximum m and sum l live in scratch memory, as arrays [rows, lanes]. Every
// step reads them, broadcasts them into three temporaries and writes them back. A warp's 32 lanes stand for
// the TPU's 128, and shared memory stands for its VMEM. The products run on tensor cores and O stays in
// registers, so that only what the document blames is slow.
//
// Predicted, per tile of 128 x 128: the products need 2048 cycles of the SM's tensor cores (with mma.sync
// some 3300). The scratch moves 11 arrays of 16 KiB at 128 bytes per cycle: 1400 cycles. The 64 KiB of K and
// V, not overlapped, take 64 KiB / 30 bytes per cycle plus latency: 3000 cycles. In all some 8000 cycles, or
// 5 ms for 10 % of 32k keys under a causal mask.
//
// Section 5 of the document wants a float32 accumulator type for the second product (claim S1.5). Every rung
// has it except rung 9.

#include "gpu/ladders/kascade/sequential.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

struct ScratchSoftmax {
  static constexpr int kRows = 128, kKeys = 128;
  struct Shared {
    float largest[kRows][kLanePitch], sum[kRows][kLanePitch];  // m and l
    float next_largest[kRows][kLanePitch], step_sum[kRows][kLanePitch], next_sum[kRows][kLanePitch];
  };

  __device__ ScratchSoftmax(Shared& shared, int row) : shared_(shared), row_(row) {
    for (int half = 0; half < 2; ++half) {
      broadcast(shared.largest, row_ + 8 * half, -INFINITY);
      broadcast(shared.sum, row_ + 8 * half, 0);
    }
    __syncwarp();
  }

  template <class Clock>
  __device__ void step(float (&s)[kKeys / 8][4], float (&o)[kDim / 8][4], float scale, Clock& clock) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = fmaxf(shared_.largest[row_ + 8 * half][lane % 4], largest_of_row<kKeys>(s, half));
      clock.end(Phase::softmax);
      broadcast(shared_.next_largest, row_ + 8 * half, largest);
      __syncwarp();
      const float next = shared_.next_largest[row_ + 8 * half][lane % 4];
      clock.end(Phase::broadcasts);
      const float shift = next == -INFINITY ? 0.0f : __fmul_rn(next, scale);
      const float sum = quad_sum(exponentiate_row<kKeys>(s, half, scale, shift));
      clock.end(Phase::softmax);
      broadcast(shared_.step_sum, row_ + 8 * half, sum);
    }
    __syncwarp();  // a warp owns its rows, so no other warp waits
    for (int row = row_ - lane / 4; row < row_ - lane / 4 + 16; ++row) {  // [rows, lanes], element by element
      const float before = __fmul_rn(shared_.largest[row][lane], scale),
                  next = shared_.next_largest[row][lane];
      const float factor = exp2f(before - (next == -INFINITY ? 0.0f : __fmul_rn(next, scale)));
      shared_.next_sum[row][lane] = shared_.step_sum[row][lane] + factor * shared_.sum[row][lane];
    }
    __syncwarp();
    clock.end(Phase::broadcasts);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_ + 8 * half;
      const float next = shared_.next_largest[row][lane % 4];
      scale_row(o, half,
                exp2f(__fmul_rn(shared_.largest[row][lane % 4], scale) -
                      (next == -INFINITY ? 0.0f : __fmul_rn(next, scale))));
    }
    clock.hold(o);
    clock.end(Phase::softmax);
    __syncwarp();
    for (int row = row_ - lane / 4; row < row_ - lane / 4 + 16; ++row) {
      shared_.largest[row][lane] = shared_.next_largest[row][lane];
      shared_.sum[row][lane] = shared_.next_sum[row][lane];
    }
    __syncwarp();
    clock.end(Phase::broadcasts);
  }

  __device__ float sum(int half) const {
    return shared_.sum[row_ + 8 * half][0];
  }

 private:
  Shared& shared_;
  int row_;
};

const Variant kVariant{.ladder = "kascade",
                       .rung = 0,
                       .name = "scratch-state",
                       .idea =
                           "the document's TPU kernel: sequential loads, running maximum and sum in scratch, "
                           "broadcast temporaries",
                       .finding =
                           "9.9 ms for 10 % of 32k keys (bf16, 32/8 heads, causal), 92 TFLOP/s executed, one "
                           "block an SM; rungs 1 and 2 together win 1.17 times back.",
                       .limits = limits_of({.compute_capability = 80}),
                       .plan = plan_sequential<ScratchSoftmax>,
                       .launch = launch_sequential<ScratchSoftmax>,
                       .trace = trace_sequential,
                       .profile = profile_sequential<ScratchSoftmax>()};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
