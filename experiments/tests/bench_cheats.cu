// Ways to cheat `splash bench` on a GPU; the size `cheat` says which. Each must be caught:
// experiments/tests/gpu_bench.sh.

#include <thread>

#include <cuda_runtime.h>

// A timer overwritten, before the header takes it.
static bool timer_lies = false;
static cudaError_t lying_elapsed(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  const cudaError_t status = cudaEventElapsedTime(milliseconds, start, stop);
  if (timer_lies) *milliseconds *= 0.01f;
  return status;
}
#define cudaEventElapsedTime lying_elapsed
#include "splash_bench.h"

__global__ void work(int64_t n, const float* x, float* y) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  float sum = 0;
  for (int k = 0; i < n && k < 4096; ++k) sum = sum * x[i] + 1.0f;
  if (i < n) y[i] = x[i] + 0 * sum;
}

static void start(cudaStream_t stream, int64_t n, const float* x, float* y) {
  work<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream>>>(n, x, y);
}

void declare(splash_bench::Bench& bench) {
  const int64_t n = bench.size("n", 1 << 22), cheat = bench.size("cheat", 0);
  auto x = bench.input<float>("x", {n});
  auto y = bench.output<float>("y", {n});
  timer_lies = cheat == 5;
  bench.run([=] {
    static cudaStream_t side = nullptr;
    static float* kept = nullptr;
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(float);
    switch (cheat) {
      case 1:  // a no-op
        break;
      case 2:  // a stream that the timer's stream does not wait for
        if (side == nullptr) splash_bench::check(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
        start(side, n, x, y);
        break;
      case 3:  // a cached result
        if (kept == nullptr) {
          splash_bench::check(cudaMalloc(&kept, bytes));
          start(nullptr, n, x, kept);
        }
        splash_bench::check(cudaMemcpyAsync(y, kept, bytes, cudaMemcpyDeviceToDevice));
        break;
      case 4: {  // a thread that starts the work after the call has returned
        const float* from = x;
        float* to = y;
        std::thread([=] {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          start(nullptr, n, from, to);
        }).detach();
        break;
      }
      default:
        start(nullptr, n, x, y);
    }
  });
  bench.reference(y, [=](int64_t i) { return x[i]; });
}
