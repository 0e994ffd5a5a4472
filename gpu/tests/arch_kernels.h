#pragma once
// Kernels that use each wrapper of gpu/arch once, run on random data. Compiles without nvcc.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace splash::gpu::testing {

// d = a b as the device computed it. a and b are as the unit sees them: rounded, and zero where the tile was
// out of bounds.
struct Product {
  int m = 0, n = 0, k = 0;
  std::vector<float> a, b, d;  // [m, k], [k, n], [m, n]
};
struct ProductCase {
  std::string name;
  double tolerance;  // on ||d - ab|| / ||ab||
  std::function<Product()> run;
};
std::vector<ProductCase> wgmma_products();     // sm_90a; tiles come through TMA
std::vector<ProductCase> half_sum_products();  // sm_90a, with float16 accumulators
std::vector<ProductCase> mma_products();       // operands come through ldmatrix or plain loads

// Copy bytes through shared memory: by 16-byte cp.async (bytes from `valid` on become zeros), by TMA's 1-D
// copies both ways, or as a tensor tile both ways. `valid` and the size are multiples of 16.
std::vector<uint8_t> copy_by_cp_async(const std::vector<uint8_t>& bytes, int valid);
std::vector<uint8_t> copy_by_bulk(const std::vector<uint8_t>& bytes);
// Copies tile (row, column) of [heads, length, 64] float32, with 128-byte swizzle, into an output of the same
// shape that is filled with 7 first.
std::vector<float> copy_tile(const std::vector<float>& tensor, int heads, int length, int head, int row,
                             int column);

std::vector<uint16_t> transpose_16x16(const std::vector<uint16_t>& matrix);  // ldmatrix.trans, stmatrix
std::vector<float> rounded_to_tf32(const std::vector<float>& values);
std::vector<float> exp2_of(const std::vector<float>& values);

// Named barriers. pass_between_warpgroups: a warpgroup that gave registers back passes `rounds` numbers to
// two that took them. pass_within_warpgroups: two warpgroups pass rounds and rounds / 2 numbers, each within
// itself. Both return what 2 x 128 threads summed.
std::vector<int> pass_between_warpgroups(int rounds);
std::vector<int> pass_within_warpgroups(int rounds);

// For each phase of an mbarrier at which 8 warps arrive: how many of them were told that they were last, and
// how many had arrived by then.
struct LastArrivals {
  std::vector<int> told, counted;  // [phases]
};
LastArrivals last_arrivals(int phases);

}  // namespace splash::gpu::testing
