#include "gpu/ceilings/ceilings.h"

#include <algorithm>

#include "gpu/benchmark/clock.h"
#include "gpu/benchmark/timing.h"
#include "gpu/ceilings/load.h"
#include "gpu/cuda_check.h"

namespace splash::gpu {
namespace {

constexpr int64_t kSamples = 31;

double middle(std::vector<double> values) {
  const auto half = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

MeasuredCeiling measure(const Load& load, const LoadContext& context, double warm_up_seconds,
                        TimingMethod method = TimingMethod::events) {
  MeasuredCeiling result{load.name, load.dtype, load.units, load.method, {}, 0};
  if (!load.enqueue) return result;
  const Timing timing = time_on_device(
      load.enqueue, context.stream,
      {.method = method, .samples = kSamples, .budget_seconds = 10, .warm_up_seconds = warm_up_seconds});
  for (const double seconds : timing.seconds)
    result.samples.push_back(load.work > 0 ? load.work / seconds : seconds);
  if (load.keeps_span) {
    ClockSpan span;
    check_cuda(cudaMemcpy(&span, context.span, sizeof span, cudaMemcpyDeviceToHost),
               "read a kernel's clocks");
    result.clock_hz =
        1e9 * static_cast<double>(span.cycles) / static_cast<double>(std::max(span.nanoseconds, 1ull));
  } else {
    result.clock_hz = timing.clock_after_hz;
  }
  return result;
}

}  // namespace

std::vector<MeasuredCeiling> measure_ceilings(int device) {
  require_device(device);
  const DeviceScope scope(device);
  const Stream stream;
  const DeviceInfo info = list_devices().at(device);
  const DeviceBuffer span(stream, sizeof(ClockSpan));
  const LoadContext context{stream, info, static_cast<ClockSpan*>(span.data())};
  constexpr double kBrief = 0.02;
  constexpr double kLong = 0.15;  // the tensor cores draw so much power that the clock settles late

  std::vector<MeasuredCeiling> all;
  MeasuredCeiling by_kernel = measure(copy_load(context), context, kBrief);
  MeasuredCeiling by_call = measure(copy_call_load(context), context, kBrief);
  all.push_back(middle(by_kernel.samples) > middle(by_call.samples) ? by_kernel : by_call);
  all.push_back(measure(read_load(context), context, kBrief));
  all.push_back(measure(l2_load(context), context, kBrief));
  all.push_back(measure(shared_load(context), context, kBrief));
  all.push_back(measure(fma_load(context), context, kBrief));
  all.push_back(measure(exponentials_load(context), context, kBrief));
  for (const char* dtype : {"tf32", "float16", "bfloat16", "float8_e4m3"}) {
    all.push_back(measure(tensor_load(context, dtype), context, kLong));
  }
  Load empty = empty_load(context);
  all.push_back(measure(empty, context, kBrief));
  empty.name = "graph node";
  empty.method = "empty kernels one after another in a replayed graph: time of one";
  all.push_back(measure(empty, context, kBrief, TimingMethod::graph));
  return all;
}

}  // namespace splash::gpu
