#pragma once
// gpu/arch/shared_pointer.cuh on the CPU: addresses are offsets into the block's shared memory.

namespace splash::gpu::arch {

inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(shared) - simt::shared_memory);
}
inline void store_shared(uint32_t address, uint32_t a, uint32_t b) {
  if (address % 8 != 0) simt::fail("stores to an address that is not aligned");
  const uint32_t words[] = {a, b};
  std::memcpy(simt::shared_memory + address, words, sizeof words);
}

}  // namespace splash::gpu::arch
