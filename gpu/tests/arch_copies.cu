// Kernels for the wrappers that move data: cp.async, bulk copies, stmatrix, named barriers, setmaxnreg.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/cp_async.cuh"
#include "gpu/arch/ldmatrix.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/arch/tensor_map.h"
#include "gpu/arch/warpgroup.cuh"
#include "gpu/cuda_check.h"
#include "gpu/tests/arch_device.h"
#include "gpu/tests/arch_kernels.h"

namespace splash::gpu::testing {
namespace {

using namespace arch;

__global__ void cp_async_copy(const uint8_t* in, uint8_t* out, int bytes, int valid) {
  extern __shared__ __align__(16) uint8_t shared[];
  for (int i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x) cp_async_16(shared + i, in + i, i < valid);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < bytes; i += blockDim.x)
    out[i] = shared[bytes - 1 - i];  // bytes that another thread loaded
}

// Copies in quarters through two barriers, each of which serves two phases.
__global__ void bulk_copy(const uint8_t* in, uint8_t* out, int bytes) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t full[2];
  const int quarter = bytes / 4;
  if (threadIdx.x == 0) {
    mbarrier_init(&full[0], 1);
    mbarrier_init(&full[1], 2);
    mbarrier_init_fence();
  }
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    uint64_t* barrier = &full[i % 2];
    if (threadIdx.x == 0) {
      if (i % 2 == 0) {
        mbarrier_arrive_expect(barrier, quarter);
      } else {
        mbarrier_expect(barrier, quarter);
        mbarrier_arrive(barrier);
      }
      bulk_load(shared + i * quarter, in + i * quarter, quarter, barrier);
    }
    if (threadIdx.x == 32 && i % 2 == 1) mbarrier_arrive(barrier);
    mbarrier_wait(barrier, i / 2);
    for (int j = threadIdx.x; j < quarter; j += blockDim.x) shared[i * quarter + j] ^= 0xFF;
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(out + i * quarter, shared + i * quarter, quarter);
      bulk_commit();
    }
  }
  if (threadIdx.x == 0) {
    bulk_wait_read<1>();
    bulk_wait<0>();
  }
}

constexpr int kTileRows = 16, kTileColumns = 32;

__global__ void tile_copy(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out,
                          int head, int row, int column) {
  __shared__ __align__(1024) float tile[kTileRows * kTileColumns];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(&full, sizeof(tile));
    tensor_load(tile, &in, &full, column, row, head);
  }
  __syncthreads();
  mbarrier_wait(&full, 0);
  for (int i = threadIdx.x; i < kTileRows * kTileColumns; i += blockDim.x) {
    const int r = i / kTileColumns, c = i % kTileColumns;
    tile[swizzled_offset(Swizzle::bytes128, r, 4 * c) / 4] += static_cast<float>(1000 * r + c);
  }
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    tensor_store(&out, tile, column, row, head);
    bulk_commit();
    bulk_wait<0>();
  }
}

__global__ void transpose(const uint16_t* in, uint16_t* out) {
  __shared__ __align__(16) uint16_t tile[16][16];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) tile[i / 16][i % 16] = in[i];
  __syncwarp();
  uint32_t blocks[4];  // 8x8 each: (0, 0), (8, 0), (0, 8), (8, 8), transposed by the load
  ldmatrix_x4_trans(blocks, &tile[lane % 16][lane / 16 * 8]);
  __syncwarp();
  stmatrix_x4(&tile[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8], blocks);
  __syncwarp();
  for (int i = lane; i < 256; i += 32) out[i] = tile[i / 16][i % 16];
}

__global__ void round_all(const float* in, float* out, int count) {
  if (static_cast<int>(threadIdx.x) < count)
    out[threadIdx.x] = __uint_as_float(round_to_tf32(in[threadIdx.x]));
}
__global__ void exp2_all(const float* in, float* out, int count) {
  if (static_cast<int>(threadIdx.x) < count) out[threadIdx.x] = exp2_approx(in[threadIdx.x]);
}

// Warpgroup 0 writes numbers for each of two other warpgroups, which add them up. Barrier 1 + c means "slot c
// is full", barrier 3 + c "slot c is empty".
__global__ void __launch_bounds__(384, 1) barrier_relay(int rounds, int* sums) {
  __shared__ int slot[2][128];
  const int group = threadIdx.x / 128, i = threadIdx.x % 128;
  if (group == 0) {
    give_registers_back<40>();
    for (int round = 0; round < rounds; ++round) {
      for (int c = 0; c < 2; ++c) {
        if (round > 0) named_barrier_sync(3 + c, 256);
        slot[c][i] = round * (c + 1) + i;
        named_barrier_arrive(1 + c, 256);
      }
    }
  } else {
    take_registers<200>();
    const int c = group - 1;
    int sum = 0;
    for (int round = 0; round < rounds; ++round) {
      named_barrier_sync(1 + c, 256);
      sum += slot[c][127 - i];
      if (round + 1 < rounds) named_barrier_arrive(3 + c, 256);
    }
    sums[c * 128 + i] = sum;
  }
}

// Two warpgroups that never wait for each other; the second has fewer rounds.
__global__ void barrier_own(int rounds, int* sums) {
  __shared__ int slot[2][128];
  const int group = threadIdx.x / 128, i = threadIdx.x % 128;
  int sum = 0;
  for (int round = 0; round < rounds / (group + 1); ++round) {
    slot[group][i] = round + i;
    named_barrier_sync(1 + group, 128);
    sum += slot[group][127 - i];
    named_barrier_sync(1 + group, 128);
  }
  sums[threadIdx.x] = sum;
}

// Warps arrive in an order that changes from phase to phase.
__global__ void arrive_last(int phases, int* told, int* counted) {
  __shared__ uint64_t barrier;
  __shared__ int arrivals;
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 8);
    arrivals = 0;
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  for (int phase = 0; phase < phases; ++phase) {
    if (threadIdx.x % 32 == 0) {
      __nanosleep(100 * ((warp * 5 + phase * 3) % 8));
      atomicAdd(&arrivals, 1);
      __threadfence_block();
      if (mbarrier_was_last(mbarrier_arrive_pending(&barrier))) {
        atomicAdd(&told[phase], 1);
        counted[phase] = atomicAdd(&arrivals, 0) - 8 * phase;
      }
    }
    mbarrier_wait(&barrier, phase % 2);
    __syncthreads();
  }
}

std::vector<float> map_floats(const std::vector<float>& values, void (*kernel)(const float*, float*, int)) {
  const Stream stream;
  const DeviceBuffer in = to_device(stream, values);
  const DeviceBuffer out(stream, in.bytes());
  const int count = static_cast<int>(values.size());
  kernel<<<1, 1024, 0, stream.handle()>>>(static_cast<const float*>(in.data()),
                                          static_cast<float*>(out.data()), count);
  check_launch("a map of floats");
  return to_host<float>(out);
}

}  // namespace

std::vector<uint8_t> copy_by_cp_async(const std::vector<uint8_t>& bytes, int valid) {
  const Stream stream;
  const DeviceBuffer in = to_device(stream, bytes);
  const DeviceBuffer out(stream, in.bytes());
  const int count = static_cast<int>(bytes.size());
  cp_async_copy<<<1, 128, count, stream.handle()>>>(static_cast<const uint8_t*>(in.data()),
                                                    static_cast<uint8_t*>(out.data()), count, valid);
  check_launch("cp_async_copy");
  return to_host<uint8_t>(out);
}

std::vector<uint8_t> copy_by_bulk(const std::vector<uint8_t>& bytes) {
  const Stream stream;
  const DeviceBuffer in = to_device(stream, bytes);
  const DeviceBuffer out(stream, in.bytes());
  const int count = static_cast<int>(bytes.size());
  bulk_copy<<<1, 128, count, stream.handle()>>>(static_cast<const uint8_t*>(in.data()),
                                                static_cast<uint8_t*>(out.data()), count);
  check_launch("bulk_copy");
  return to_host<uint8_t>(out);
}

std::vector<float> copy_tile(const std::vector<float>& tensor, int heads, int length, int head, int row,
                             int column) {
  const Stream stream;
  const DeviceBuffer in = to_device(stream, tensor);
  const DeviceBuffer out = to_device(stream, std::vector<float>(tensor.size(), 7.0f));
  const auto map = [&](const DeviceBuffer& buffer) {
    return encode_tiles({.data = buffer.data(),
                         .dtype = Dtype::f32,
                         .heads = heads,
                         .length = length,
                         .dim = static_cast<int64_t>(tensor.size()) / (int64_t{1} * heads * length),
                         .tile_rows = kTileRows,
                         .tile_columns = kTileColumns});
  };
  tile_copy<<<1, 128, 0, stream.handle()>>>(map(in), map(out), head, row, column);
  check_launch("tile_copy");
  return to_host<float>(out);
}

std::vector<uint16_t> transpose_16x16(const std::vector<uint16_t>& matrix) {
  const Stream stream;
  const DeviceBuffer in = to_device(stream, matrix);
  const DeviceBuffer out(stream, in.bytes());
  transpose<<<1, 32, 0, stream.handle()>>>(static_cast<const uint16_t*>(in.data()),
                                           static_cast<uint16_t*>(out.data()));
  check_launch("transpose");
  return to_host<uint16_t>(out);
}

std::vector<float> rounded_to_tf32(const std::vector<float>& values) {
  return map_floats(values, round_all);
}
std::vector<float> exp2_of(const std::vector<float>& values) {
  return map_floats(values, exp2_all);
}

std::vector<int> pass_between_warpgroups(int rounds) {
  const Stream stream;
  const DeviceBuffer sums(stream, 256 * sizeof(int));
  barrier_relay<<<1, 384, 0, stream.handle()>>>(rounds, static_cast<int*>(sums.data()));
  check_launch("barrier_relay");
  return to_host<int>(sums);
}

std::vector<int> pass_within_warpgroups(int rounds) {
  const Stream stream;
  const DeviceBuffer sums(stream, 256 * sizeof(int));
  barrier_own<<<1, 256, 0, stream.handle()>>>(rounds, static_cast<int*>(sums.data()));
  check_launch("barrier_own");
  return to_host<int>(sums);
}

LastArrivals last_arrivals(int phases) {
  const Stream stream;
  const DeviceBuffer told = to_device(stream, std::vector<int>(phases)),
                     counted = to_device(stream, std::vector<int>(phases));
  arrive_last<<<1, 256, 0, stream.handle()>>>(phases, static_cast<int*>(told.data()),
                                              static_cast<int*>(counted.data()));
  check_launch("arrive_last");
  return {to_host<int>(told), to_host<int>(counted)};
}

}  // namespace splash::gpu::testing
