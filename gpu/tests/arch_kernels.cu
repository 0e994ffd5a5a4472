// Kernels for the wrappers that multiply: wgmma (with the tiles that feed it), mma.sync and ldmatrix.

#include "gpu/tests/arch_kernels.h"

#include <cstring>
#include <random>

#include <cuda_fp8.h>

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/ldmatrix.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/arch/tensor_map.h"
#include "gpu/arch/wgmma_f16.cuh"
#include "gpu/cuda_check.h"
#include "gpu/tests/arch_device.h"

namespace splash::gpu::testing {
namespace {

using namespace arch;
using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;

template <class Element>
std::vector<Element> random_elements(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<Element> values(static_cast<size_t>(count));
  for (auto& value : values) value = static_cast<Element>(normal(generator));
  return values;
}

// A matrix [rows, columns] that is stored in a tensor with two heads. Only `stored` of its rows exist; the
// other rows of the tile are 0.
template <class Element>
struct Operand {
  int rows, columns, stored, head;
  std::vector<Element> data;

  Operand(int tile_rows, int tile_columns, int missing, int which_head, unsigned seed)
      : rows(tile_rows),
        columns(tile_columns),
        stored(tile_rows - missing),
        head(which_head),
        data(random_elements<Element>(int64_t{2} * stored * tile_columns, seed)) {}

  template <class Round>
  std::vector<float> tile(Round round) const {
    std::vector<float> values(static_cast<size_t>(rows) * columns, 0.0f);
    for (int i = 0; i < stored * columns; ++i)
      values[i] = round(static_cast<float>(data[head * stored * columns + i]));
    return values;
  }
  CUtensorMap map(const DeviceBuffer& device, Swizzle swizzle, bool round_to_tf32) const {
    // TMA only moves bytes, so one-byte elements are described in pairs.
    constexpr int kPerUnit = sizeof(Element) == 1 ? 2 : 1;
    return encode_tiles(
        {.data = device.data(),
         .dtype = sizeof(Element) == 4 ? Dtype::f32 : Dtype::bf16,
         .heads = 2,
         .length = stored,
         .dim = columns / kPerUnit,
         .tile_rows = rows,
         .tile_columns = static_cast<int>(swizzle) / static_cast<int>(sizeof(Element)) / kPerUnit,
         .swizzle = swizzle,
         .round_to_tf32 = round_to_tf32});
  }
};

std::vector<float> transposed(const std::vector<float>& matrix, int rows, int columns) {
  std::vector<float> result(matrix.size());
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) result[j * rows + i] = matrix[i * columns + j];
  return result;
}

// A: [64, K] K-major or [K, 64] MN-major. B: [N, K] K-major or [K, N] MN-major. Both are stored as panels as
// wide as the swizzle. kHalf: float16 accumulators.
template <class Element, int kN, int kK, Major kMajorA, Major kMajorB, bool kFromRegisters, Swizzle kSwizzle,
          bool kHalf>
__global__ void __launch_bounds__(128, 1)
    wgmma_product(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                  int a_head, int b_head, float* out) {
  constexpr int kWidth = static_cast<int>(kSwizzle);
  constexpr int kColumns = kWidth / static_cast<int>(sizeof(Element));
  constexpr int kRowsA = kMajorA == Major::k ? 64 : kK, kRowsB = kMajorB == Major::k ? kN : kK;
  constexpr int kPanelA = kRowsA * kWidth, kPanelB = kRowsB * kWidth;
  constexpr int kBytesA = 64 * kK * sizeof(Element), kBytesB = kN * kK * sizeof(Element);
  constexpr int kUnit = sizeof(Element) == 1 ? 2 : 1;
  extern __shared__ __align__(1024) char shared[];
  char *a = shared, *b = shared + kBytesA;
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&a_map);
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(&full, kBytesA + kBytesB);
    for (int p = 0; p < kBytesA / kPanelA; ++p) {
      tensor_load(a + p * kPanelA, &a_map, &full, p * kColumns / kUnit, 0, a_head);
    }
    for (int p = 0; p < kBytesB / kPanelB; ++p) {
      tensor_load(b + p * kPanelB, &b_map, &full, p * kColumns / kUnit, 0, b_head);
    }
  }
  __syncthreads();
  mbarrier_wait(&full, 0);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint64_t b_start =
      kMajorB == Major::k ? k_major_descriptor<kSwizzle>(b) : mn_major_descriptor<kSwizzle>(b, kPanelB);
  const uint64_t a_start =
      kMajorA == Major::k ? k_major_descriptor<kSwizzle>(a) : mn_major_descriptor<kSwizzle>(a, kPanelA);
  // The offset of step k, 32 bytes of K: along a row, then to the next panel; in an MN-major tile, to the
  // next rows.
  const auto step = [](Major major, int k, int panel) {
    constexpr int kStepsAPanel = kWidth / 32;
    return major == Major::k ? k / kStepsAPanel * panel + k % kStepsAPanel * 32 : k * 16 * kWidth;
  };
  std::conditional_t<kHalf, uint32_t, float> d[kHalf ? kN / 4 : kN / 2];
  for (auto& x : d) x = kHalf ? 0x7BFF7BFF : 1e30f;  // the first product must not add to it
  uint32_t a_registers[kFromRegisters ? kK / 16 : 1][4];
  if constexpr (kFromRegisters) {
    static_assert(kMajorA == Major::k && kSwizzle == Swizzle::bytes128);
    for (int k = 0; k < kK / 16; ++k) {
      const int row = 16 * warp + lane % 16, byte = k % 4 * 32 + lane / 16 * 16;
      ldmatrix_x4(a_registers[k], a + k / 4 * kPanelA + swizzled_offset(kSwizzle, row, byte));
    }
  }
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kBytesA / 64 / 32; ++k) {
    const uint64_t b_step = advance(b_start, step(kMajorB, k, kPanelB));
    if constexpr (kHalf) {
      wgmma_f16(d, a_registers[k], b_step, k > 0);
    } else if constexpr (kFromRegisters) {
      wgmma<Element, kMajorB>(d, a_registers[k], b_step, k > 0);
    } else {
      wgmma<Element, kMajorB, kMajorA>(d, advance(a_start, step(kMajorA, k, kPanelA)), b_step, k > 0);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold(d);
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int row = 16 * warp + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if constexpr (kHalf) {
      out[row * kN + column] = __half2float(reinterpret_cast<const __half*>(d)[i]);
    } else {
      out[row * kN + column] = d[i];
    }
  }
}

float truncated_to_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits &= ~0x1FFFu;
  std::memcpy(&x, &bits, 4);
  return x;
}
float nearest_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits += 0x1000u;
  std::memcpy(&x, &bits, 4);
  return truncated_to_tf32(x);
}

template <class Element, int kN, int kK, Major kMajorA = Major::k, Major kMajorB = Major::k,
          bool kFromRegisters = false, Swizzle kSwizzle = Swizzle::bytes128, bool kHalf = false>
Product run_wgmma(bool round_to_tf32 = false) {
  const auto kernel = wgmma_product<Element, kN, kK, kMajorA, kMajorB, kFromRegisters, kSwizzle, kHalf>;
  // The last rows of both operands are missing. A is the first of two heads; the second must not leak in.
  const Operand<Element> a(kMajorA == Major::k ? 64 : kK, kMajorA == Major::k ? kK : 64, 3, 0, 1);
  const Operand<Element> b(kMajorB == Major::k ? kN : kK, kMajorB == Major::k ? kK : kN, 5, 1, 2);
  const Stream stream;
  const DeviceBuffer a_device = to_device(stream, a.data), b_device = to_device(stream, b.data);
  DeviceBuffer out(stream, 64 * kN * 4);
  out.fill(0xFF);
  const int bytes = (64 + kN) * kK * static_cast<int>(sizeof(Element));
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "get shared memory");
  kernel<<<1, 128, bytes, stream.handle()>>>(a.map(a_device, kSwizzle, round_to_tf32),
                                             b.map(b_device, kSwizzle, round_to_tf32), a.head, b.head,
                                             static_cast<float*>(out.data()));
  check_launch("wgmma_product");
  const auto seen = [&](float x) {
    if (sizeof(Element) < 4) return x;
    return round_to_tf32 ? nearest_tf32(x) : truncated_to_tf32(x);
  };
  const auto a_tile = a.tile(seen), b_tile = b.tile(seen);
  return {.m = 64,
          .n = kN,
          .k = kK,
          .a = kMajorA == Major::k ? a_tile : transposed(a_tile, kK, 64),
          .b = kMajorB == Major::k ? transposed(b_tile, kN, kK) : b_tile,
          .d = to_host<float>(out)};
}

// One warp, A [16, 16 or 8] and B [8, k] row-major in global memory.
template <class Element>
__global__ void mma_product(const Element* a, const Element* b, float* out) {
  constexpr bool kTf32 = sizeof(Element) == 4;
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  float d[4] = {};
  if constexpr (kTf32) {
    const uint32_t a_registers[4] = {round_to_tf32(a[g * 8 + t]), round_to_tf32(a[(g + 8) * 8 + t]),
                                     round_to_tf32(a[g * 8 + t + 4]), round_to_tf32(a[(g + 8) * 8 + t + 4])};
    mma_m16n8k8_tf32(d, a_registers, round_to_tf32(b[g * 8 + t]), round_to_tf32(b[g * 8 + t + 4]));
  } else {
    __shared__ __align__(16) Element tile[24][16];
    for (int i = lane; i < 24 * 16; i += 32) tile[i / 16][i % 16] = i < 256 ? a[i] : b[i - 256];
    __syncwarp();
    uint32_t a_registers[4], b_registers[4];
    ldmatrix_x4(a_registers, &tile[lane % 16][lane / 16 * 8]);
    ldmatrix_x4(b_registers,
                &tile[16 + lane % 8][lane / 8 % 2 * 8]);  // lanes 16 to 31 repeat: B has only two matrices
    mma_m16n8k16<Element>(d, a_registers, b_registers[0], b_registers[1]);
  }
  for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

template <class Element>
Product run_mma() {
  constexpr int kK = sizeof(Element) == 4 ? 8 : 16;
  const auto a = random_elements<Element>(16 * kK, 3), b = random_elements<Element>(8 * kK, 4);
  const Stream stream;
  const DeviceBuffer a_device = to_device(stream, a), b_device = to_device(stream, b);
  DeviceBuffer out(stream, 16 * 8 * 4);
  mma_product<<<1, 32, 0, stream.handle()>>>(static_cast<const Element*>(a_device.data()),
                                             static_cast<const Element*>(b_device.data()),
                                             static_cast<float*>(out.data()));
  check_launch("mma_product");
  const auto seen = [](Element x) {
    return kK == 8 ? nearest_tf32(static_cast<float>(x)) : static_cast<float>(x);
  };
  Product product{.m = 16, .n = 8, .k = kK, .a = {}, .b = {}, .d = to_host<float>(out)};
  for (const Element x : a) product.a.push_back(seen(x));
  for (const Element x : b) product.b.push_back(seen(x));
  product.b = transposed(product.b, 8, kK);
  return product;
}

}  // namespace

std::vector<ProductCase> wgmma_products() {
  constexpr auto k = Major::k, mn = Major::mn;
  constexpr auto wide = Swizzle::bytes128, half_wide = Swizzle::bytes64, narrow = Swizzle::bytes32;
  constexpr double tight = 2e-6;
  return {
      {"bf16 n 16", tight, [] { return run_wgmma<bf16, 16, 64>(); }},
      {"bf16 n 32", tight, [] { return run_wgmma<bf16, 32, 64>(); }},
      {"bf16 n 64, two panels of k", tight, [] { return run_wgmma<bf16, 64, 128>(); }},
      {"bf16 n 96", tight, [] { return run_wgmma<bf16, 96, 64>(); }},
      {"bf16 n 192", tight, [] { return run_wgmma<bf16, 192, 64>(); }},
      {"bf16 n 256", tight, [] { return run_wgmma<bf16, 256, 64>(); }},
      {"fp16 n 128, rows of 64 bytes", tight,
       [] { return run_wgmma<__half, 128, 32, k, k, false, half_wide>(); }},
      {"bf16 n 64, rows of 32 bytes", tight, [] { return run_wgmma<bf16, 64, 32, k, k, false, narrow>(); }},
      {"bf16 n 64, B MN-major", tight, [] { return run_wgmma<bf16, 64, 64, k, mn>(); }},
      {"fp16 n 128, B MN-major", tight, [] { return run_wgmma<__half, 128, 64, k, mn>(); }},
      {"bf16 n 32, B MN-major, rows of 64 bytes", tight,
       [] { return run_wgmma<bf16, 32, 32, k, mn, false, half_wide>(); }},
      {"bf16 n 96, B MN-major, rows of 64 bytes", tight,
       [] { return run_wgmma<bf16, 96, 32, k, mn, false, half_wide>(); }},
      {"bf16 n 64, A and B MN-major", tight, [] { return run_wgmma<bf16, 64, 64, mn, mn>(); }},
      {"fp16 n 64, A from registers", tight, [] { return run_wgmma<__half, 64, 128, k, k, true, wide>(); }},
      {"bf16 n 128, A from registers, B MN-major", tight,
       [] { return run_wgmma<bf16, 128, 128, k, mn, true, wide>(); }},
      {"bf16 n 192, A from registers, B MN-major", tight,
       [] { return run_wgmma<bf16, 192, 64, k, mn, true, wide>(); }},
      {"fp16 n 256, A from registers, B MN-major", tight,
       [] { return run_wgmma<__half, 256, 64, k, mn, true, wide>(); }},
      {"tf32 n 128", tight, [] { return run_wgmma<float, 128, 64>(); }},
      {"tf32 n 64, rounded by TMA", tight, [] { return run_wgmma<float, 64, 64>(true); }},
      {"e4m3 n 128", 1e-3, [] { return run_wgmma<e4m3, 128, 256>(); }},  // fp8 products add with some 14 bits
  };
}

std::vector<ProductCase> half_sum_products() {
  constexpr auto k = Major::k;
  constexpr auto wide = Swizzle::bytes128;
  return {
      {"n 64", 1e-3, [] { return run_wgmma<__half, 64, 64, k, k, true, wide, true>(); }},
      {"n 128", 1e-3, [] { return run_wgmma<__half, 128, 64, k, k, true, wide, true>(); }},
      {"n 64, four panels of k", 2e-3, [] { return run_wgmma<__half, 64, 256, k, k, true, wide, true>(); }}};
}

std::vector<ProductCase> mma_products() {
  return {{"fp16", 1e-6, run_mma<__half>}, {"bf16", 1e-6, run_mma<bf16>}, {"tf32", 1e-6, run_mma<float>}};
}

}  // namespace splash::gpu::testing
