// C = A B of 256 x 256 matrices with a long inner dimension, a block for each tile of 64 x 64: 16 blocks,
// where a GPU has a hundred multiprocessors. Too little parallelism bounds it, by construction; cutting the
// inner dimension cures it.

#include "splash_bench.h"

constexpr int kTile = 64, kDepth = 16, kPerThread = 4;  // 256 threads, 4 x 4 elements each

__global__ void gemm(int n, int depth, const float* a, const float* b, float* c) {
  __shared__ float left[kDepth][kTile + 1], right[kDepth][kTile];
  float sum[kPerThread][kPerThread] = {};
  const int row = blockIdx.y * kTile, column = blockIdx.x * kTile, thread = threadIdx.x;
  const int y = thread / 16, x = thread % 16;
  for (int start = 0; start < depth; start += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += blockDim.x) {
      left[i % kDepth][i / kDepth] = a[int64_t{row + i / kDepth} * depth + start + i % kDepth];
      right[i / kTile][i % kTile] = b[int64_t{start + i / kTile} * n + column + i % kTile];
    }
    __syncthreads();
    for (int k = 0; k < kDepth; ++k) {
      for (int i = 0; i < kPerThread; ++i) {
        for (int j = 0; j < kPerThread; ++j) sum[i][j] += left[k][y + 16 * i] * right[k][x + 16 * j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kPerThread; ++i) {
    for (int j = 0; j < kPerThread; ++j) c[(row + y + 16 * i) * n + column + x + 16 * j] = sum[i][j];
  }
}

void declare(splash_bench::Bench& bench) {
  const int64_t n = bench.size("n", 256), depth = bench.size("depth", 4096);  // multiples of 64 and 16
  auto a = bench.input<float>("a", {n, depth}), b = bench.input<float>("b", {depth, n});
  auto c = bench.output<float>("c", {n, n});
  bench.flops(2.0 * n * n * depth);
  bench.run([=] {
    const auto tiles = static_cast<unsigned>(n / kTile);
    splash_bench::launch(gemm, dim3(tiles, tiles), 256, 0, static_cast<int>(n), static_cast<int>(depth), a, b,
                         c);
  });
  bench.reference(c, [=](int64_t i) {
    double sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += static_cast<double>(a[i / n * depth + k]) * b[k * n + i % n];
    return sum;
  });
}
