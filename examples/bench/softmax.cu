// Softmax of rows, a thread to a row: each walks its row alone, one element after the other, and waits for
// each. Blocks claim so much shared memory that two warps are resident on a multiprocessor. Latency bounds
// it, by construction.

#include "splash_bench.h"

__global__ void softmax(int columns, const float* in, float* out) {
  extern __shared__ float claimed[];  // not used: it keeps other blocks away
  const int64_t row = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const float *from = in + row * columns, *const end = from + columns;
  float most = -1e30f, sum = 0;
  for (const float* x = from; x < end; ++x) {
    const float higher = fmaxf(most, *x);
    sum = sum * __expf(most - higher) + __expf(*x - higher);
    most = higher;
  }
  for (int i = 0; i < columns; ++i) out[row * columns + i] = __expf(from[i] - most) / sum;
  if (columns < 0) claimed[0] = sum;
}

void declare(splash_bench::Bench& bench) {
  constexpr int kThreads = 64, kClaimed = 120 << 10;
  const int64_t rows = bench.size("rows", 64 * 1024),
                columns = bench.size("columns", 256);  // rows: a multiple of 64
  auto in = bench.input<float>("in", {rows, columns}, -4, 4);
  auto out = bench.output<float>("out", {rows, columns});
  bench.flops(8.0 * rows * columns);
  bench.run([=] {
    splash_bench::launch(softmax, static_cast<unsigned>(rows / kThreads), kThreads, kClaimed,
                         static_cast<int>(columns), in, out);
  });
  bench.reference(out, [=](int64_t i) {
    const float* row = in + i / columns * columns;
    double sum = 0;
    for (int64_t k = 0; k < columns; ++k) sum += std::exp(static_cast<double>(row[k]));
    return std::exp(static_cast<double>(in[i])) / sum;
  });
}
