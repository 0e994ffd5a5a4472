// Transposes a matrix through a tile in shared memory whose rows are 32 words apart: each of the reads of a
// column goes through one bank, 32 passes where one would do. Shared memory bounds it, by construction; a row
// of 33 words cures it.

#include "splash_bench.h"

constexpr int kTile = 32;

__global__ void transpose(int64_t n, const float* in, float* out) {
  __shared__ float tile[kTile][kTile];
  const int64_t column = blockIdx.x * int64_t{kTile} + threadIdx.x, row = blockIdx.y * int64_t{kTile};
  for (int i = threadIdx.y; i < kTile; i += blockDim.y) tile[i][threadIdx.x] = in[(row + i) * n + column];
  __syncthreads();
  const int64_t to = row + threadIdx.x, first = blockIdx.x * int64_t{kTile};
  for (int i = threadIdx.y; i < kTile; i += blockDim.y) out[(first + i) * n + to] = tile[threadIdx.x][i];
}

void declare(splash_bench::Bench& bench) {
  const int64_t n = bench.size("n", 8192);  // a multiple of 32
  auto in = bench.input<float>("in", {n, n});
  auto out = bench.output<float>("out", {n, n});
  bench.tolerance(0, 0);
  bench.run([=] {
    const auto tiles = static_cast<unsigned>(n / kTile);
    splash_bench::launch(transpose, dim3(tiles, tiles), dim3(kTile, 8), 0, n, in, out);
  });
  bench.reference(out, [=](int64_t i) { return in[i % n * n + i / n]; });
}
