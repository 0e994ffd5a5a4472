#include "gpu/benchmark/timing.h"

#include <algorithm>
#include <memory>

#include "gpu/benchmark/clock.h"
#include "gpu/cuda_check.h"
#include "gpu/device.h"

namespace splash::gpu {
namespace {

constexpr int64_t kMinSamples = 10;
constexpr double kGraphSeconds =
    2e-4;  // target length of a replay (4 to 100 calls), so that the events cost < 1 % of it

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;

Event make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "create an event");
  return Event(event);
}

// Device seconds of `work` between two events; `before` runs outside them.
class Stopwatch {
 public:
  explicit Stopwatch(const Stream& stream) : stream_(stream), begin_(make_event()), end_(make_event()) {}

  template <class Before, class Work>
  double operator()(const Before& before, const Work& work) const {
    before();
    check_cuda(cudaEventRecord(begin_.get(), stream_.handle()), "record an event");
    work();
    check_cuda(cudaEventRecord(end_.get(), stream_.handle()), "record an event");
    check_cuda(cudaEventSynchronize(end_.get()), "finish the timed work");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "read the events");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  const Stream& stream_;
  Event begin_, end_;
};

// `calls` calls captured into one graph.
class CallGraph {
 public:
  CallGraph(const std::function<void()>& enqueue, const Stream& stream, int64_t calls) : stream_(stream) {
    check_cuda(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal), "begin a capture");
    for (int64_t i = 0; i < calls; ++i) enqueue();
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(stream.handle(), &graph), "end a capture");
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "instantiate a graph");
  }
  ~CallGraph() { cudaGraphExecDestroy(executable_); }
  CallGraph(const CallGraph&) = delete;
  CallGraph& operator=(const CallGraph&) = delete;

  void replay() const { check_cuda(cudaGraphLaunch(executable_, stream_.handle()), "launch a graph"); }

 private:
  const Stream& stream_;
  cudaGraphExec_t executable_ = nullptr;
};

template <class Sample>
std::vector<double> collect(const Sample& sample, double estimate, const TimingOptions& options) {
  const auto affordable = static_cast<int64_t>(options.budget_seconds / std::max(estimate, 1e-7));
  const int64_t samples = std::clamp(affordable, std::min(kMinSamples, options.samples), options.samples);
  std::vector<double> seconds;
  for (int64_t i = 0; i < samples; ++i) seconds.push_back(sample());
  return seconds;
}

}  // namespace

Timing time_on_device(const std::function<void()>& enqueue, const Stream& stream,
                      const TimingOptions& options) {
  const bool cold = options.cache == CacheState::cold;
  if (cold && options.method == TimingMethod::graph)
    throw InvalidArgument("a replayed graph has a warm cache; cold timing needs the method events");
  const DeviceScope scope(stream.device());
  const Stopwatch stopwatch(stream);
  const auto nothing = [] {};

  enqueue();  // loads the module
  stream.synchronize();
  double estimate = stopwatch(nothing, enqueue);
  for (double spent = 0; spent < options.warm_up_seconds; spent += std::max(estimate, 1e-6))
    estimate = stopwatch(nothing, enqueue);

  Timing timing;
  timing.clock_before_hz = measure_clock_hz(stream);
  if (options.method == TimingMethod::graph) {
    const auto calls =
        std::clamp<int64_t>(static_cast<int64_t>(kGraphSeconds / std::max(estimate, 1e-7)), 4, 100);
    const CallGraph graph(enqueue, stream, calls);
    graph.replay();
    stream.synchronize();
    const auto sample = [&] {
      return stopwatch(nothing, [&] { graph.replay(); }) / static_cast<double>(calls);
    };
    timing.seconds = collect(sample, estimate * static_cast<double>(calls), options);
  } else {
    DeviceBuffer flush(stream, cold ? 2 * list_devices().at(stream.device()).l2_bytes : 0);
    const auto before = [&] {
      flush.fill(0);
      spin(stream);
    };
    timing.seconds = collect([&] { return stopwatch(before, enqueue); }, estimate, options);
  }
  timing.clock_after_hz = measure_clock_hz(stream);
  return timing;
}

}  // namespace splash::gpu
