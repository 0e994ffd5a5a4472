#pragma once
// The softmax of rungs 2 and 3. All of it stays in registers.

#include "gpu/ladders/kascade/sequential.cuh"

namespace splash::gpu::kascade {

template <int kBlockRows, int kTileKeys>
struct RegisterSoftmax {
  static constexpr int kRows = kBlockRows, kKeys = kTileKeys;
  struct Shared {};

  __device__ RegisterSoftmax(Shared&, int) {}
  template <class Clock>
  __device__ void step(float (&s)[kKeys / 8][4], float (&o)[kDim / 8][4], float scale, Clock&) {
    online_softmax<kKeys>(s, o, state_, scale);
  }
  __device__ float sum(int half) const { return quad_sum(state_[half].sum); }

 private:
  RowState state_[2];
};

}  // namespace splash::gpu::kascade
