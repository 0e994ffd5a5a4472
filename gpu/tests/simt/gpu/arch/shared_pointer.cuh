#pragma once
// gpu/arch/shared_pointer.cuh on the CPU: addresses count from the block's shared memory on.

namespace splash::gpu::arch {

inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(shared) - simt::shared_memory);
}
template <int kOffset, class... Words>
void store_shared(uint32_t address, Words... words) {
  const uint32_t all[] = {words...};
  if ((address + kOffset) % sizeof all != 0) simt::fail("stores to an address that is not aligned");
  std::memcpy(simt::shared_memory + address + kOffset, all, sizeof all);
}

}  // namespace splash::gpu::arch
