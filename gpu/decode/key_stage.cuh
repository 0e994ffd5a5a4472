#pragma once
// Keys on their way through shared memory (cp.async), 16 at a time.
//
// A product's lanes take 64 bytes of a key at a time. Where a warp reads DRAM so, it asks for each line of
// 128 bytes twice, half by half, and DRAM delivers less. So copies take whole lines.

#include "gpu/arch/cp_async.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// 16 keys in a warp's shared memory. A copy takes whole lines of 128 bytes (or keys of 64). Of every other
// key the halves of a line change places: lanes read two keys at once, and share no bank so.
template <class T, int kDim>
class KeyStage {
  static constexpr int kRow = kDim * int{sizeof(T)}, kLine = kRow < 128 ? kRow : 128;
  static constexpr int kLines = kRow / kLine, kLanes = kLine / 16;  // lines of a key, lanes of a line
  static constexpr int kKeysAtOnce = 32 / kLanes / kLines;
  static_assert(kKeysAtOnce >= 1);

  static __device__ int swapped(int key) { return kRow < 128 ? 0 : key % 2 * 64; }

 public:
  static constexpr int kBytes = 16 * kRow;

  // Where the lane's first copy begins: which of the 16 keys, and which of its elements.
  static __device__ int key_of(int lane) { return lane / kLanes / kLines; }
  static __device__ int element_of(int lane) {
    return (lane / kLanes % kLines * kLine + lane % kLanes * 16) / int{sizeof(T)};
  }

  // from: the lane's first.
  static __device__ __forceinline__ void copy(unsigned char* to, const T* from, int64_t token_stride,
                                              int lane) {
    const int in_row = element_of(lane) * int{sizeof(T)};
#pragma unroll
    for (int first = 0; first < 16; first += kKeysAtOnce) {
      const int key = first + key_of(lane);
      arch::cp_async_16(to + first * kRow + key_of(lane) * kRow + (in_row ^ swapped(key)),
                        from + first * token_stride);
    }
  }

  static __device__ __forceinline__ void read(const unsigned char* from, int lane, KeyChunk<T, kDim>& keys) {
    from += lane / 4 * kRow;
#pragma unroll
    for (int w = 0; w < KeyChunk<T, kDim>::kWords; ++w) {
      const int in_row = (64 * w + lane % 4 * 16) ^ swapped(lane / 4);
      keys.low[w] = *reinterpret_cast<const uint4*>(from + in_row);
      keys.high[w] = *reinterpret_cast<const uint4*>(from + 8 * kRow + in_row);
    }
  }
};

}  // namespace splash::gpu::decode
