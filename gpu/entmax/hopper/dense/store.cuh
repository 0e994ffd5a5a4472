#pragma once
// Stores the support of a block's rows once tau is known: one pass over the keys counts it, another writes
// it.

#include "gpu/entmax/hopper/dense/tiles.cuh"

namespace splash::gpu::entmax::hopper {

template <class Products>
__device__ __forceinline__ void store_support(const ForwardProblem& p, Products& products,
                                              const Entmax& entmax, const DenseRows& rows) {
  const Arithmetic<Kind::any> arithmetic{entmax.gain, entmax.beta};
  const auto excess = [&](float score, int half) { return arithmetic.excess(score, rows, half); };
  int counts[2] = {0, 0};  // of the lane
  products.multiply_keys(0, 1, [&](const float(&scores)[kPart / 2], int) {
#pragma unroll
    for (int j = 0; j < kPart / 2; ++j) counts[j / 2 % 2] += excess(scores[j], j / 2 % 2) > 0;
  });
  const int query[2] = {products.query_of(0), products.query_of(1)};
  int64_t at[2];  // where the lane's entries of each row go, key after key
  place_support(p, products.head(), query, counts, at);
  products.multiply_keys(0, 1, [&](const float(&scores)[kPart / 2], int key) {
    const int first = key + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!__any_sync(kWarp, at[half] >= 0)) continue;
      int32_t* column = p.support.columns + at[half];
      float* to = p.support.excess + at[half];
      // Predicates, not branches: few lanes have an entry to store, but nearly every warp has such a lane.
#pragma unroll
      for (int i = 0; i < kPart / 4; ++i) {
        const float u = at[half] >= 0 ? excess(scores[4 * (i / 2) + 2 * half + i % 2], half) : 0;
#ifdef __CUDA_ARCH__
        asm volatile(
            "{\n.reg .pred p;\nsetp.gt.f32 p, %2, 0f00000000;\n"
            "@p st.global.b32 [%0], %3;\n@p st.global.f32 [%1], %2;\n"
            "@p add.s64 %0, %0, 4;\n@p add.s64 %1, %1, 4;\n}"
            : "+l"(column), "+l"(to)
            : "f"(u), "r"(first + 8 * (i / 2) + i % 2)
            : "memory");
#else
        if (u > 0) {
          *column++ = first + 8 * (i / 2) + i % 2;
          *to++ = u;
        }
#endif
      }
      if (at[half] >= 0) at[half] = to - p.support.excess;
    }
  });
}

}  // namespace splash::gpu::entmax::hopper
