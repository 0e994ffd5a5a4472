// Compares occupancy with CUDA's own calculator, a header of the toolkit, on every GPU of data/machines.

#if SPLASH_HAVE_CUDA

#include <random>

#include <cuda_occupancy.h>
#include <doctest/doctest.h>

#include "analysis/machine.h"
#include "analysis/occupancy.h"

using namespace splash;
using namespace splash::analysis;

namespace {

cudaOccDeviceProp properties_of(const analysis::Machine& machine) {
  const Multiprocessors& m = machine.multiprocessors;
  cudaOccDeviceProp properties;
  properties.computeMajor = machine.compute_capability / 10;
  properties.computeMinor = machine.compute_capability % 10;
  properties.maxThreadsPerBlock = 1024;
  properties.maxThreadsPerMultiprocessor = 32 * m.warps;
  properties.regsPerBlock = 65536;
  properties.regsPerMultiprocessor = m.registers;
  properties.warpSize = 32;
  properties.sharedMemPerBlock = 48 << 10;
  properties.sharedMemPerMultiprocessor = static_cast<std::size_t>(m.shared_bytes);
  properties.numSms = m.count;
  properties.reservedSharedMemPerBlock = machine.compute_capability >= 80 ? 1024 : 0;
  properties.sharedMemPerBlockOptin =
      properties.sharedMemPerMultiprocessor - properties.reservedSharedMemPerBlock;
  return properties;
}

}  // namespace

TEST_CASE("occupancy is what CUDA's calculator says, for any kernel on any GPU of data/machines") {
  std::mt19937 generator(11);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(generator);
  };
  for (const auto& machine : analysis::read_machines(SPLASH_SOURCE_DIR "/data/machines")) {
    CAPTURE(machine.name);
    const cudaOccDeviceProp properties = properties_of(machine);
    for (int i = 0; i < 20000; ++i) {
      KernelUse use{.blocks = 1,
                    .threads = static_cast<int>(pick(1, 1024)),
                    .registers = static_cast<int>(pick(1, 255))};
      const auto most = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
      use.shared_bytes = pick(0, 2) == 0 ? 0 : pick(0, pick(0, 3) == 0 ? most : 32 << 10);
      cudaOccFuncAttributes attributes;
      attributes.maxThreadsPerBlock = 1024;
      attributes.numRegs = use.registers;
      const int64_t fixed = pick(0, std::min<int64_t>(use.shared_bytes, 48 << 10));
      attributes.sharedSizeBytes = static_cast<std::size_t>(fixed);
      attributes.partitionedGCConfig = PARTITIONED_GC_OFF;
      attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
      attributes.maxDynamicSharedSizeBytes = static_cast<std::size_t>(use.shared_bytes - fixed);
      attributes.numBlockBarriers = 1;
      const cudaOccDeviceState state;
      cudaOccResult result{};
      REQUIRE(cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &attributes, &state, use.threads,
                                                      static_cast<std::size_t>(use.shared_bytes - fixed)) ==
              CUDA_OCC_SUCCESS);
      CAPTURE(use.threads);
      CAPTURE(use.registers);
      CAPTURE(use.shared_bytes);
      CHECK(occupancy_of(machine.multiprocessors, use).blocks == result.activeBlocksPerMultiprocessor);
    }
  }
}

#endif
