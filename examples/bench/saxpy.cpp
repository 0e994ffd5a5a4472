// y = a x + y on one thread: `splash bench examples/bench/saxpy.cpp` needs no GPU.

#include "splash_bench.h"

void saxpy(int64_t n, float a, const float* x, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a * x[i] + y[i];
}

void declare(splash_bench::Bench& bench) {
  const int64_t n = bench.size("n", 1 << 24);
  auto x = bench.input<float>("x", {n});
  auto y = bench.update<float>("y", {n});
  bench.flops(2.0 * n);
  bench.run([=] { saxpy(n, 2.5f, x, y); });
  bench.reference(y, [=](int64_t i) { return 2.5 * x[i] + y[i]; });
}
