#pragma once
// gpu/arch/wgmma_f16.cuh and what it includes, on the CPU. Products are computed at the wait for them, from
// what shared memory then holds; until then their registers are poison. Operands have the layout that
// bulk_copy.cuh here writes.

#include <cuda_fp16.h>

namespace splash::gpu::arch {

inline constexpr float kHalfStepError = 0x1p-11f;

inline uint64_t k_major_descriptor(const void* tile) {
  return reinterpret_cast<uint64_t>(tile);
}
inline uint64_t advance(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes);
}
inline uint64_t uniform(uint64_t descriptor) {
  if (simt::exchange(simt::Scope::warp, "uniform", descriptor)[0] != descriptor)
    simt::fail("has another descriptor than its warp");
  return descriptor;
}

inline void wgmma_fence() {}
inline void wgmma_commit() {
  simt::commit_products();
}
template <int kPending>
void wgmma_wait() {
  simt::finish_products(kPending);
  simt::exchange(simt::Scope::warp, "wgmma wait", 0);  // no lane goes on before its warp's products are done
}
template <int kRegisters>
void wgmma_hold(uint32_t (&)[kRegisters]) {}

template <int kRegisters>
void wgmma_f16(uint32_t (&d)[kRegisters], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  struct Fragment {
    uint32_t words[4];
  };
  const Fragment mine{{a[0], a[1], a[2], a[3]}};
  if (!accumulate) std::fill(std::begin(d), std::end(d), 0x7FFF7FFF);
  simt::add_product([&d, mine, b, accumulate] {
    const auto of_warp = simt::exchange(simt::Scope::warp, "wgmma", mine);
    const int lane = simt::lane();
    float rows[2][16];
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < 16; ++k) {
        const uint32_t word = of_warp[lane / 4 * 4 + k % 8 / 2].words[half + k / 8 * 2];
        rows[half][k] = __half2float(__half(__half_raw{static_cast<uint16_t>(word >> 16 * (k % 2))}));
      }
    }
    for (int i = 0; i < kRegisters; ++i) {  // columns 8 (i / 2) + 2 (lane % 4) + {0, 1}
      __half sums[2] = {};
      if (accumulate) std::memcpy(static_cast<void*>(sums), &d[i], sizeof sums);
      for (int e = 0; e < 2; ++e) {
        __half column[16];
        const uint64_t at = b + 128 * static_cast<uint64_t>(i / 2 * 8 + lane % 4 * 2 + e);
        std::memcpy(static_cast<void*>(column), reinterpret_cast<const void*>(at), sizeof column);
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += rows[i % 2][k] * __half2float(column[k]);
        sums[e] = __float2half(__half2float(sums[e]) + sum);
      }
      std::memcpy(&d[i], static_cast<const void*>(sums), sizeof sums);
    }
  });
}

}  // namespace splash::gpu::arch
