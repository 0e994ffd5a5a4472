// Every wrapper of gpu/arch against the CPU. The Hopper wrappers are in one program with the others, so all
// tests need sm_90.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "core/error.h"
#include "gpu/arch/swizzle.h"
#include "gpu/tests/arch_kernels.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu::testing;

#define SKIP_WITHOUT_HOPPER() \
  SKIP_WITHOUT_GPU();         \
  if (gpu::list_devices().front().compute_major != 9) return

namespace {

double relative_error(const Product& product) {
  double wrong = 0, size = 0;
  for (int i = 0; i < product.m; ++i) {
    for (int j = 0; j < product.n; ++j) {
      double expected = 0;
      for (int k = 0; k < product.k; ++k) {
        expected += double{product.a[i * product.k + k]} * double{product.b[k * product.n + j]};
      }
      const double off = double{product.d[i * product.n + j]} - expected;
      wrong += off * off;
      size += expected * expected;
    }
  }
  return std::sqrt(wrong / size);
}

std::vector<uint8_t> random_bytes(int count) {
  std::mt19937 generator(5);
  std::vector<uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(generator());
  return bytes;
}

}  // namespace

TEST_CASE("a swizzle moves 16-byte chunks within 8 rows and never two to one place") {
  for (const auto swizzle :
       {gpu::arch::Swizzle::bytes32, gpu::arch::Swizzle::bytes64, gpu::arch::Swizzle::bytes128}) {
    const int width = static_cast<int>(swizzle);
    std::vector<int> seen(8 * width, 0);
    for (int row = 0; row < 8; ++row) {
      for (int byte = 0; byte < width; ++byte) {
        const int offset = gpu::arch::swizzled_offset(swizzle, row, byte);
        REQUIRE(offset / width == row);
        CHECK(offset % 16 == byte % 16);
        ++seen[offset];
      }
    }
    CHECK(seen == std::vector<int>(8 * width, 1));
  }
}

TEST_CASE("wgmma multiplies, whatever the width, the layout and where the operands are") {
  SKIP_WITHOUT_HOPPER();
  for (const auto& product : wgmma_products()) {
    CAPTURE(product.name);
    CHECK(relative_error(product.run()) < product.tolerance);
  }
}

TEST_CASE("wgmma with float16 accumulators rounds once a step of 16, to the nearest") {
  SKIP_WITHOUT_HOPPER();
  for (const auto& half_sum : half_sum_products()) {
    CAPTURE(half_sum.name);
    const Product product = half_sum.run();
    CHECK(relative_error(product) < half_sum.tolerance);
    int too_far = 0;
    for (int i = 0; i < product.m; ++i) {
      for (int j = 0; j < product.n; ++j) {
        double sum = 0, rounding = 0;
        for (int k = 0; k < product.k; ++k) {
          sum += double{product.a[i * product.k + k]} * double{product.b[k * product.n + j]};
          if (k % 16 == 15) rounding += std::abs(sum) * 0x1p-11 + 0x1p-18;
        }
        too_far += std::abs(double{product.d[i * product.n + j]} - sum) > 1.01 * rounding;
      }
    }
    CHECK(too_far == 0);
  }
}

TEST_CASE("mma.sync multiplies what ldmatrix loaded") {
  SKIP_WITHOUT_HOPPER();
  for (const auto& product : mma_products()) {
    CAPTURE(product.name);
    CHECK(relative_error(product.run()) < product.tolerance);
  }
}

TEST_CASE("cp.async copies the valid chunks and zeroes the others") {
  SKIP_WITHOUT_HOPPER();
  const auto bytes = random_bytes(4096 + 16);
  for (const int valid : {0, 16, 2000, 4096 + 16}) {
    auto expected = bytes;
    for (int i = valid; i < static_cast<int>(expected.size()); ++i) expected[i] = 0;
    std::reverse(expected.begin(), expected.end());
    CHECK(copy_by_cp_async(bytes, valid) == expected);
  }
}

TEST_CASE("TMA moves runs of bytes both ways") {
  SKIP_WITHOUT_HOPPER();
  const auto bytes = random_bytes(4 * 1040);
  auto expected = bytes;
  for (auto& byte : expected) byte = static_cast<uint8_t>(~byte);
  CHECK(copy_by_bulk(bytes) == expected);
}

TEST_CASE("a tile stops at the end of its head, on the way in and on the way out") {
  SKIP_WITHOUT_HOPPER();
  constexpr int kHeads = 3, kLength = 21, kDim = 40;
  std::vector<float> tensor(kHeads * kLength * kDim);
  std::iota(tensor.begin(), tensor.end(), 0.5f);
  for (const auto& [head, row, column] : {std::array{0, 0, 0}, {1, 16, 0}, {2, 16, 32}}) {
    std::vector<float> expected(tensor.size(), 7.0f);
    for (int r = 0; r < 16; ++r) {
      for (int c = 0; c < 32; ++c) {
        if (row + r >= kLength || column + c >= kDim) continue;
        const int at = (head * kLength + row + r) * kDim + column + c;
        expected[at] = tensor[at] + static_cast<float>(1000 * r + c);
      }
    }
    CHECK(copy_tile(tensor, kHeads, kLength, head, row, column) == expected);
  }
}

TEST_CASE("a tensor that TMA cannot take is refused") {
  SKIP_WITHOUT_HOPPER();
  CHECK_THROWS_AS(copy_tile(std::vector<float>(2 * 3 * 7), 2, 3, 0, 0, 0),
                  InvalidArgument);  // rows of 28 bytes
}

TEST_CASE("ldmatrix and stmatrix transpose a tile between them") {
  SKIP_WITHOUT_HOPPER();
  std::vector<uint16_t> matrix(256), expected(256);
  std::iota(matrix.begin(), matrix.end(), uint16_t{0});
  for (int i = 0; i < 256; ++i) expected[i % 16 * 16 + i / 16] = matrix[i];
  CHECK(transpose_16x16(matrix) == expected);
}

TEST_CASE("rounding to tf32 takes the nearest, and 2^x is good to 2^-21") {
  SKIP_WITHOUT_HOPPER();
  std::mt19937 generator(6);
  std::normal_distribution<float> normal(0.0f, 10.0f);
  std::vector<float> values(1000);
  for (auto& value : values) value = normal(generator);
  const auto rounded = rounded_to_tf32(values), powers = exp2_of(values);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &rounded[i], 4);
    CHECK((bits & 0x1FFFu) == 0);
    CHECK(std::abs(rounded[i] - values[i]) <= std::ldexp(std::abs(values[i]), -11));
    CHECK(powers[i] == doctest::Approx(std::exp2(double{values[i]})).epsilon(std::ldexp(1, -21)));
  }
  CHECK(exp2_of({-INFINITY})[0] == 0.0f);
}

TEST_CASE("named barriers order a warpgroup while the other goes on") {
  SKIP_WITHOUT_HOPPER();
  const int rounds = 100;
  const auto sums = pass_within_warpgroups(rounds);
  for (int i = 0; i < 256; ++i) {
    const int own = rounds / (i / 128 + 1);
    CHECK(sums[i] == own * (own - 1) / 2 + own * (127 - i % 128));
  }
}

TEST_CASE("of the warps that arrive at an mbarrier one is told that it came last, when all others have") {
  SKIP_WITHOUT_HOPPER();
  const auto [told, counted] = last_arrivals(100);
  CHECK(told == std::vector<int>(100, 1));
  CHECK(counted == std::vector<int>(100, 8));
}

// compute-sanitizer's racecheck does not follow named barriers between warpgroups and reports false races.
// Exclude this case there (-tce="*racecheck*").
TEST_CASE("named barriers hand numbers from one warpgroup to two others (not under racecheck)") {
  SKIP_WITHOUT_HOPPER();
  const int rounds = 100;
  const auto sums = pass_between_warpgroups(rounds);
  for (int c = 0; c < 2; ++c) {
    for (int i = 0; i < 128; ++i) {
      CHECK(sums[c * 128 + i] == rounds * (rounds - 1) / 2 * (c + 1) + rounds * (127 - i));
    }
  }
}
