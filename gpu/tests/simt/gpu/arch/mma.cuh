#pragma once
// gpu/arch/mma.cuh on the CPU, with the fragment layouts that it documents and plain sums.

#include "gpu/arch/pack_pair.cuh"

namespace splash::gpu::arch {

template <class Element>
float element_of(uint32_t pair, int which) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * which));
  Element element;
  std::memcpy(static_cast<void*>(&element), &bits, sizeof bits);
  return static_cast<float>(element);
}

inline float exp2_approx(float x) {
  return std::exp2(x);
}

template <class Element>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Fragments {
    uint32_t a[4], b[2];
  };
  const auto lanes = simt::exchange(simt::Scope::warp, "mma", Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int group = simt::lane() / 4, first = 2 * (simt::lane() % 4);
  for (int i = 0; i < 4; ++i) {
    const int row = group + 8 * (i / 2), column = first + i % 2;
    for (int k = 0; k < 16; ++k) {
      const auto of_row = lanes[4 * (row % 8) + k % 8 / 2];
      const auto of_column = lanes[4 * column + k % 8 / 2];
      d[i] += element_of<Element>(of_row.a[k / 8 * 2 + row / 8], k % 2) *
              element_of<Element>(of_column.b[k / 8], k % 2);
    }
  }
}

}  // namespace splash::gpu::arch
