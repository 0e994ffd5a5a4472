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
  bool with_backward = false;  // also tune the flagship's backward
  double budget_seconds = 20;  // for the whole search
};

// One search: among the candidates for a rung, among the values of one knob, or finally between default and
// best.
struct TuneStage {
  std::string what;
  SearchResult result;
};

struct TuneResult {
  std::vector<TuneStage> stages;
  std::vector<gpu::TunedEntry> entries;  // entries to cache; the default if nothing is faster
};

// The full id of the rung that chooses, or kFlagship; throws InvalidArgument that names what can be tuned.
std::string tuned_subject(const std::string& word);

// Defaults of the problem's parameters for a subject: those without which it cannot take the problem.
Parameters tuned_defaults(const std::string& subject);

// Measures on the current device. Afterwards this process no longer uses any cached tuning. Calls `tell` with
// each stage as it ends. Throws DeviceError, Unsupported if the subject does not take the problem, and
// InvalidArgument.
TuneResult tune(const TuneRequest& request, const std::function<void(const TuneStage&)>& tell);

}  // namespace splash::experiments
