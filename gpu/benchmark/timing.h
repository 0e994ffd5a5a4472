#pragma once
// How long work on a stream takes on the device, and at which clock. Compiles without nvcc.

#include <functional>
#include <vector>

#include "gpu/engine/memory.h"

namespace splash::gpu {

enum class CacheState {
  warm,  // L2 holds what the call before left there
  cold,  // a buffer of twice L2's size is written before every sample
};

enum class TimingMethod {
  events,  // CUDA events around each call, the host running ahead: what a lone call costs the device, launch
           // included
  graph,   // one CUDA graph of several calls, replayed: back-to-back cost without the host; warm only
};

struct TimingOptions {
  CacheState cache = CacheState::warm;
  TimingMethod method = TimingMethod::events;
  int64_t samples = 50;
  double budget_seconds = 0.5;  // fewer samples, at least 10, where one call takes long
  double warm_up_seconds = 0.05;
};

struct Timing {
  std::vector<double> seconds;                     // a call, each sample
  double clock_before_hz = 0, clock_after_hz = 0;  // multiprocessor clock, read on the device
};

// `enqueue` puts one call onto the stream. Throws DeviceError where it fails; InvalidArgument for cold
// graphs.
Timing time_on_device(const std::function<void()>& enqueue, const Stream& stream,
                      const TimingOptions& options = {});

}  // namespace splash::gpu
