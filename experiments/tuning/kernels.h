#pragma once
// What `splash tune kernels` measures: rungs that choose among others, and the flagship's knobs.

#include <functional>
#include <string>
#include <vector>

#include "core/workload.h"
#include "experiments/runner/kind.h"
#include "experiments/tuning/search.h"
#include "gpu/engine/tuned.h"

namespace splash::experiments {

inline constexpr const char* kFlagship = "flagship";

struct TuneRequest {
  std::string subject;         // kFlagship, or the id of a rung that chooses
  Parameters problem;          // problem_parameters()
  Workload workload;           // q, k and v; their variance and seed are the problem's
  bool with_backward = false;  // the flagship's backward too
  double budget_seconds = 20;  // for all of it
};

// One search: of the candidates for a rung, the values of one knob, or at last the default against the best.
struct TuneStage {
  std::string what;
  SearchResult result;
};

struct TuneResult {
  std::vector<TuneStage> stages;
  std::vector<gpu::TunedEntry> entries;  // what is to be cached, the default where nothing is faster
};

// The full id of the rung that chooses, or kFlagship; throws InvalidArgument naming what can be tuned.
std::string tuned_subject(const std::string& word);

// The defaults of the problem's parameters for a subject: what it needs to take the problem at all.
Parameters tuned_defaults(const std::string& subject);

// Measures on the current device. From then on the process goes by no cache. `tell`: called with each stage
// as it ends. Throws DeviceError, Unsupported where the subject does not take the problem, InvalidArgument.
TuneResult tune(const TuneRequest& request, const std::function<void(const TuneStage&)>& tell);

}  // namespace splash::experiments
