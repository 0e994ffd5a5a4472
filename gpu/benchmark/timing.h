#pragma once
// Device time of work on a stream, and the SM clock before and after. Compiles without nvcc.

#include <functional>
#include <vector>

#include "gpu/engine/memory.h"

namespace splash::gpu {

enum class CacheState {
  warm,  // L2 holds what the previous call left there
  cold,  // before every sample, a buffer of twice L2's size is overwritten
};

enum class TimingMethod {
  events,  // CUDA events around each call, with the host ahead of the device: the device time of a lone call,
           // launch included
  graph,  // one CUDA graph of several calls, replayed: cost of back-to-back calls without the host; warm only
};

struct TimingOptions {
  CacheState cache = CacheState::warm;
  TimingMethod method = TimingMethod::events;
  int64_t samples = 50;
  double budget_seconds = 0.5;  // takes fewer samples (at least 10) if a call takes long
  double warm_up_seconds = 0.05;
};

struct Timing {
  std::vector<double> seconds;                     // per call, one entry per sample
  double clock_before_hz = 0, clock_after_hz = 0;  // multiprocessor clock, read on the device
};

// `enqueue` enqueues one call on the stream. Throws DeviceError if CUDA fails; InvalidArgument for
// CacheState::cold with TimingMethod::graph, because a replayed graph has a warm cache.
Timing time_on_device(const std::function<void()>& enqueue, const Stream& stream,
                      const TimingOptions& options = {});

}  // namespace splash::gpu
