#pragma once
// Stores a lane's entries of the support, a run for each of its two rows, key after key.

#include "gpu/entmax/dense_sums.cuh"

namespace splash::gpu::entmax {

class EntryWriter {
 public:
  // at: where the runs start, or -1 where nothing is to be stored.
  __device__ __forceinline__ EntryWriter(const Support& support, const int64_t (&at)[2])
      : support_(support), at_{at[0], at[1]} {}

  // Scores of 64 keys. Predicates, not branches: few lanes have something to store, but nearly always one of
  // the warp does.
  template <Kind kKind>
  __device__ __forceinline__ void add(const float (&scores)[kPart / 2], int key,
                                      const Arithmetic<kKind>& arithmetic, const DenseRows& rows) {
    const int first = key + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!__any_sync(kWarp, at_[half] >= 0)) continue;
      int32_t* column = support_.columns + at_[half];
      float* excess = support_.excess + at_[half];
      const float shift = at_[half] >= 0 ? rows.root[half].shift : -INFINITY;
#pragma unroll
      for (int i = 0; i < kPart / 4; ++i) {
        const float score = scores[4 * (i / 2) + 2 * half + i % 2];
        const float u = arithmetic.excess(score, rows.pivot[half], shift);
        asm volatile(
            "{\n.reg .pred p;\nsetp.gt.f32 p, %2, 0f00000000;\n"
            "@p st.global.b32 [%0], %3;\n@p st.global.f32 [%1], %2;\n"
            "@p add.s64 %0, %0, 4;\n@p add.s64 %1, %1, 4;\n}"
            : "+l"(column), "+l"(excess)
            : "f"(u), "r"(first + 8 * (i / 2) + i % 2)
            : "memory");
      }
      if (at_[half] >= 0) at_[half] = excess - support_.excess;
    }
  }

 private:
  const Support& support_;
  int64_t at_[2];
};

}  // namespace splash::gpu::entmax
