#include "cpu_ref/ceilings/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <memory>

#include <fmt/format.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/parallel.h"
#include "cpu_ref/attention/screening/tile.h"
#include "cpu_ref/ceilings/caches.h"

namespace splash::cpu_ref {
namespace {

using Clock = std::chrono::steady_clock;

// Samples are short, so that in some of them all threads run undisturbed although other programs run too.
constexpr int kSamples = 201, kLeastSamples = 7;
constexpr double kWarmSeconds = 0.05, kMostSeconds = 0.35;  // per ceiling: to settle the clock; to sample
constexpr int64_t kMostBytes = int64_t{1} << 30;
constexpr int64_t kVectorBytes = screening::kLanes * static_cast<int64_t>(sizeof(float));

// A vector register of each type.
using Floats = float __attribute__((vector_size(kVectorBytes)));
using Doubles = double __attribute__((vector_size(kVectorBytes)));

int thread_count() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

template <class Vector>
constexpr int64_t kLanesOf = static_cast<int64_t>(sizeof(Vector) / sizeof(Vector{}[0]));

template <class Vector>
double sum_of(const Vector& lanes) {
  double sum = 0;
  for (int64_t i = 0; i < kLanesOf<Vector>; ++i) sum += lanes[i];
  return sum;
}

// Independent multiply-adds per step. Two ports with a latency of 4 need 8 at once, and 12 fit the registers
// of AVX2.
constexpr int kSums = 12;

template <class Vector>
double multiply_add(int64_t steps) {
  Vector sums[kSums] = {};
  const Vector a = Vector{} + 0.75f, b = Vector{} + 1.0f;
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = sum * a + b;
  }
  double total = 0;
  for (const auto& sum : sums) total += sum_of(sum);
  return total;
}

// read_all() adds up a buffer; `bytes` must be a multiple of kReadBytes.
constexpr int64_t kReads = 8, kReadBytes = kReads * kVectorBytes;

double read_all(const char* data, int64_t bytes) {
  Floats sums[kReads] = {};
  for (int64_t at = 0; at < bytes; at += kReadBytes) {
    const auto* const vectors = reinterpret_cast<const Floats*>(data + at);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kReads; ++i) sums[i] += vectors[i];
  }
  double total = 0;
  for (const auto& sum : sums) total += sum_of(sum);
  return total;
}

struct Free {
  void operator()(char* data) const { ::operator delete[](data, std::align_val_t(kAlignment)); }
  static constexpr std::size_t kAlignment = 4096;
};
using Buffer = std::unique_ptr<char[], Free>;

Buffer buffer_of(int64_t bytes) {
  return Buffer(static_cast<char*>(
      ::operator new[](static_cast<std::size_t>(bytes), std::align_val_t(Free::kAlignment))));
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Which time counts. threads: the processor time of the slowest thread, for resources that each core owns;
// other programs do not lengthen it. wall: the time that all threads take together, for resources that they
// share.
enum class Timed { threads, wall };

// Runs work(thread) on all threads at once, again and again. Returns amount / seconds of each run. The
// results of the work are kept, so that the compiler does not remove it.
template <class Work>
std::vector<double> rates(int threads, Timed timed, double amount, const Work& work) {
  std::vector<double> samples;
  std::vector<double> kept(static_cast<std::size_t>(threads)), spent(kept.size());
  const auto begin = Clock::now();
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  for (int turn = 0; turn < 1 << 20; ++turn) {
    const bool warm = since(begin) >= kWarmSeconds && turn > 0;
    const auto start = Clock::now();
    parallel_for(threads, 1, [&](int64_t i) {
      const double before = thread_seconds();
      kept[static_cast<std::size_t>(i)] += work(i);
      spent[static_cast<std::size_t>(i)] = thread_seconds() - before;
    });
    const double together = since(start), slowest = *std::max_element(spent.begin(), spent.end());
    const double seconds = timed == Timed::wall ? together : slowest;
    if (warm && seconds > 0) samples.push_back(amount / seconds);
    const bool late = since(begin) > kMostSeconds;
    if (samples.size() >= kSamples || (late && samples.size() >= kLeastSamples)) break;
  }
  volatile double sink = 0;
  for (const double value : kept) sink = sink + value;
  return samples;
}

template <class Vector>
MeasuredCeiling measure_fma(int threads, const char* dtype) {
  constexpr int64_t kSteps = 1'000'000;
  constexpr int64_t kFlops = 2 * kSums * kLanesOf<Vector> * kSteps;
  return {.name = "cpu fma",
          .dtype = dtype,
          .units = "FLOP/s",
          .method = fmt::format("{} vectors of {} bytes, independent multiply-adds, {} threads", kSums,
                                kVectorBytes, threads),
          .samples = rates(threads, Timed::threads, static_cast<double>(kFlops) * threads,
                           [](int64_t) { return multiply_add<Vector>(kSteps); })};
}

// Each thread reads its own buffer, which fills half of the cache, so often that a sample takes about a
// millisecond.
MeasuredCeiling measure_cache(int threads, const char* name, int64_t cache_bytes) {
  MeasuredCeiling ceiling{.name = name, .dtype = "", .units = "bytes/s", .method = "", .samples = {}};
  const int64_t bytes = cache_bytes / 2 / kReadBytes * kReadBytes;
  if (bytes == 0) {
    ceiling.method = "not measured: the system does not tell how large the cache is";
    return ceiling;
  }
  const int64_t times = std::max<int64_t>(1, (int64_t{64} << 20) / bytes);
  std::vector<Buffer> buffers;
  for (int i = 0; i < threads; ++i) {
    buffers.push_back(buffer_of(bytes));
    std::memset(buffers.back().get(), 0, static_cast<std::size_t>(bytes));
  }
  ceiling.method =
      fmt::format("each of {} threads reads its own {} KiB, half of the cache", threads, bytes >> 10);
  ceiling.samples =
      rates(threads, Timed::threads, static_cast<double>(bytes * times) * threads, [&](int64_t i) {
        double sum = 0;
        for (int64_t time = 0; time < times; ++time)
          sum += read_all(buffers[static_cast<std::size_t>(i)].get(), bytes);
        return sum;
      });
  return ceiling;
}

// The buffer is four times the last cache, so little of it is still cached when the next pass returns to it.
std::vector<MeasuredCeiling> measure_memory(int threads, int64_t last_cache) {
  constexpr int64_t kUnknown = int64_t{256} << 20;
  const int64_t wanted = last_cache > 0 ? std::min(4 * last_cache, kMostBytes) : kUnknown;
  const int64_t each = std::max(kReadBytes, wanted / threads / (2 * kReadBytes) * (2 * kReadBytes));
  const Buffer buffer = buffer_of(each * threads);
  const auto part = [&](int64_t i) { return buffer.get() + i * each; };
  parallel_for(threads, 1, [&](int64_t i) { std::memset(part(i), 0, static_cast<std::size_t>(each)); });
  const auto bytes = static_cast<double>(each) * threads;
  const int64_t mebibytes = (each * threads) >> 20;
  std::vector<MeasuredCeiling> measured(2);
  measured[0] = {
      .name = "cpu dram read",
      .dtype = "",
      .units = "bytes/s",
      .method = fmt::format("{} threads read {} MiB once", threads, mebibytes),
      .samples = rates(threads, Timed::wall, bytes, [&](int64_t i) { return read_all(part(i), each); })};
  measured[1] = {.name = "cpu dram copy",
                 .dtype = "",
                 .units = "bytes/s",
                 .method = fmt::format("{} threads copy {} MiB (memcpy), bytes read and written", threads,
                                       mebibytes / 2),
                 .samples = rates(threads, Timed::wall, bytes, [&](int64_t i) {
                   std::memcpy(part(i), part(i) + each / 2, static_cast<std::size_t>(each / 2));
                   return static_cast<double>(*part(i));
                 })};
  return measured;
}

}  // namespace

std::vector<MeasuredCeiling> measure_ceilings() {
  const int threads = thread_count();
  const Caches sizes = caches();
  std::vector<MeasuredCeiling> ceilings = measure_memory(threads, sizes.last);
  ceilings.push_back(measure_cache(threads, "cpu l2 read", sizes.l2));
  ceilings.push_back(measure_cache(threads, "cpu l1 read", sizes.l1));
  ceilings.push_back(measure_fma<Floats>(threads, "float32"));
  ceilings.push_back(measure_fma<Doubles>(threads, "float64"));
  return ceilings;
}

}  // namespace splash::cpu_ref
