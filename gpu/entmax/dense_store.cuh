#pragma once
// Stores the support of a block's rows once tau is known: a pass over the keys counts it, another one writes.

#include "gpu/entmax/dense_tiles.cuh"

namespace splash::gpu::entmax {

template <class T, int kPanels>
__device__ __forceinline__ void store_support(const Problem& p, DenseProducts<T, kPanels>& products,
                                              const Entmax& entmax, const DenseRows& rows) {
  const Arithmetic<Kind::any> arithmetic{entmax.gain, entmax.beta};
  const auto excess = [&](float score, int half) { return arithmetic.excess(score, rows, half); };
  int counts[2] = {0, 0};  // the lane's
  products.multiply_keys(0, 1, [&](const float(&scores)[kPart / 2], int) {
#pragma unroll
    for (int j = 0; j < kPart / 2; ++j) counts[j / 2 % 2] += excess(scores[j], j / 2 % 2) > 0;
  });
  const int query[2] = {products.query_of(0), products.query_of(1)};
  int64_t at[2];  // a run for each of the lane's rows, key after key
  place(p, products.head, query, counts, at);
  products.multiply_keys(0, 1, [&](const float(&scores)[kPart / 2], int key) {
    const int first = key + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!__any_sync(kWarp, at[half] >= 0)) continue;
      int32_t* column = p.support.columns + at[half];
      float* to = p.support.excess + at[half];
      // Predicates, not branches: few lanes have something to store, but nearly always one of the warp does.
#pragma unroll
      for (int i = 0; i < kPart / 4; ++i) {
        const float u = at[half] >= 0 ? excess(scores[4 * (i / 2) + 2 * half + i % 2], half) : 0;
        asm volatile(
            "{\n.reg .pred p;\nsetp.gt.f32 p, %2, 0f00000000;\n"
            "@p st.global.b32 [%0], %3;\n@p st.global.f32 [%1], %2;\n"
            "@p add.s64 %0, %0, 4;\n@p add.s64 %1, %1, 4;\n}"
            : "+l"(column), "+l"(to)
            : "f"(u), "r"(first + 8 * (i / 2) + i % 2)
            : "memory");
      }
      if (at[half] >= 0) at[half] = to - p.support.excess;
    }
  });
}

}  // namespace splash::gpu::entmax
