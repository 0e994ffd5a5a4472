// y = a x + y, well made: DRAM bounds it, and `splash bench examples/bench/saxpy.cu` says so.

#include "splash_bench.h"

__global__ void saxpy(int64_t n, float a, const float* x, float* y) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

void declare(splash_bench::Bench& bench) {
  const int64_t n = bench.size("n", 1 << 25);
  auto x = bench.input<float>("x", {n});
  auto y = bench.update<float>("y", {n});
  bench.flops(2.0 * n);
  bench.run([=] { splash_bench::launch(saxpy, (n + 255) / 256, 256, 0, n, 2.5f, x, y); });
  bench.reference(y, [=](int64_t i) { return 2.5 * x[i] + y[i]; });
}
