#pragma once
// Signed bytes as elements of 16 bits, exactly, by permuted bytes instead of conversions (sm_90 for bf16).

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace splash::gpu::arch {

// The four bytes of a register in two registers, the first in a low half.
template <class Element>
__device__ __forceinline__ uint2 elements_of_bytes(uint32_t bytes) {
  const auto difference = [](uint32_t from, uint32_t less) {
    using Pair = std::conditional_t<std::is_same_v<Element, __half>, __half2, __nv_bfloat162>;
    const Pair pair = __hsub2(*reinterpret_cast<const Pair*>(&from), *reinterpret_cast<const Pair*>(&less));
    return *reinterpret_cast<const uint32_t*>(&pair);
  };
  if constexpr (std::is_same_v<Element, __half>) {  // 0x6400 + n is 1024 + n, and the byte + 128 is n
    const uint32_t n = bytes ^ 0x80808080u;
    return {difference(__byte_perm(n, 0x64646464u, 0x4140), 0x64806480u),
            difference(__byte_perm(n, 0x64646464u, 0x4342), 0x64806480u)};
  } else {  // 0x4300 + n is 128 + n for n below 128, 0x4380 is 256: less 128, and 128 more of a negative byte
    const uint32_t n = bytes & 0x7F7F7F7Fu, sign = bytes & 0x80808080u;
    return {difference(__byte_perm(n, 0x43434343u, 0x4140), __byte_perm(sign, 0x43434343u, 0x4140)),
            difference(__byte_perm(n, 0x43434343u, 0x4342), __byte_perm(sign, 0x43434343u, 0x4342))};
  }
}

}  // namespace splash::gpu::arch
