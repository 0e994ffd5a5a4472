#pragma once
// gpu/arch/wgmma.cuh on the CPU, for elements of 16 bits, of which a is k-major; see wgmma_f16.cuh here.

#include "gpu/arch/mma.cuh"
#include "gpu/arch/swizzle.h"
#include "gpu/arch/wgmma_f16.cuh"

namespace splash::gpu::arch {

enum class Major { k = 0, mn = 1 };

// The low 48 bits are the tile's address, the others the panels' distance in rows.
inline uint64_t mn_major_descriptor(const void* tile, int panel_bytes) {
  return reinterpret_cast<uint64_t>(tile) | static_cast<uint64_t>(panel_bytes / 128) << 48;
}

template <int kRegisters>
void wgmma_hold(float (&)[kRegisters]) {}

// An element of b: k-major, or of 64 columns a panel.
template <class Element, Major kMajor>
float element_at(uint64_t descriptor, uint64_t column, uint64_t k) {
  const uint64_t tile = descriptor & 0xFFFFFFFFFFFF, panel_bytes = 128 * (descriptor >> 48);
  const uint64_t at = kMajor == Major::k ? tile + 128 * column + 2 * k
                                         : tile + column / 64 * panel_bytes + 128 * k + 2 * (column % 64);
  Element element;
  std::memcpy(static_cast<void*>(&element), reinterpret_cast<const void*>(at), sizeof element);
  return static_cast<float>(element);
}

// d (+)= rows times b, where rows(half, k) is an element of the lane's rows when the product is done.
template <class Element, Major kMajorB, int kRegisters, class Rows>
void add_wgmma(float (&d)[kRegisters], uint64_t b, bool accumulate, const Rows& rows) {
  if (!accumulate) std::fill(std::begin(d), std::end(d), NAN);
  simt::add_product([&d, b, accumulate, rows] {
    float of_rows[2][16];
    rows(of_rows);
    for (int i = 0; i < kRegisters; ++i) {
      const auto column = static_cast<uint64_t>(8 * (i / 4) + 2 * (simt::lane() % 4) + i % 2);
      float sum = accumulate ? d[i] : 0;
      for (uint64_t k = 0; k < 16; ++k)
        sum += of_rows[i / 2 % 2][k] * element_at<Element, kMajorB>(b, column, k);
      d[i] = sum;
    }
  });
}

template <class Element, Major kMajorB = Major::k, int kRegisters>
void wgmma(float (&d)[kRegisters], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  struct Fragment {
    uint32_t words[4];
  };
  const Fragment mine{{a[0], a[1], a[2], a[3]}};
  add_wgmma<Element, kMajorB>(d, b, accumulate, [mine](float(&rows)[2][16]) {
    const auto of_warp = simt::exchange(simt::Scope::warp, "wgmma", mine);
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < 16; ++k) {
        const uint32_t pair = of_warp[simt::lane() / 4 * 4 + k % 8 / 2].words[half + k / 8 * 2];
        rows[half][k] = element_of<Element>(pair, k % 2);
      }
    }
  });
}

template <class Element, Major kMajorB = Major::k, int kRegisters>
void wgmma(float (&d)[kRegisters], uint64_t a, uint64_t b, bool accumulate) {
  add_wgmma<Element, kMajorB>(d, b, accumulate, [a](float(&rows)[2][16]) {
    const auto first = static_cast<uint64_t>(threadIdx.x % 128 / 32 * 16 + simt::lane() / 4);
    for (uint64_t half = 0; half < 2; ++half) {
      for (uint64_t k = 0; k < 16; ++k) rows[half][k] = element_at<Element, Major::k>(a, first + 8 * half, k);
    }
  });
}

}  // namespace splash::gpu::arch
