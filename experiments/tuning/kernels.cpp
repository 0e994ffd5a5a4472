#include "experiments/tuning/kernels.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/runner/provenance.h"
#include "experiments/tuning/flagship.h"
#include "gpu/engine/attention.h"
#include "gpu/engine/chooser.h"

namespace splash::experiments {
namespace {

// Whether two plans make the same launches.
bool same_plan(const gpu::Plan& a, const gpu::Plan& b) {
  const auto same = [](const gpu::KernelLaunch& x, const gpu::KernelLaunch& y) {
    return x.function == y.function && x.blocks == y.blocks && x.threads == y.threads &&
           x.shared_bytes == y.shared_bytes;
  };
  return a.tile.q == b.tile.q && a.tile.k == b.tile.k && std::ranges::equal(a.kernels, b.kernels, same);
}

// The candidates that support the problem. The one that the rung's rule chooses comes first.
std::vector<const gpu::Variant*> candidates_of(const gpu::Chooser& chooser, const DeviceProblem& on) {
  const gpu::Variant& rung = gpu::find_variant(chooser.rung);
  gpu::require_supported(rung, on.spec, on.dtype, on.device);
  const gpu::Plan chosen = rung.plan(on.spec, on.dtype, on.device);
  std::vector<const gpu::Variant*> candidates;
  for (const std::string& id : chooser.candidates) {
    const gpu::Variant& variant = gpu::find_variant(id);
    if (!gpu::unsupported_reason(variant, on.spec, on.dtype, on.device).empty()) continue;
    const bool is_chosen = same_plan(variant.plan(on.spec, on.dtype, on.device), chosen);
    candidates.insert(is_chosen ? candidates.begin() : candidates.end(), &variant);
  }
  return candidates;
}

TuneResult tune_rung(const TuneRequest& request, const DeviceProblem& on,
                     const std::function<void(const TuneStage&)>& tell) {
  const auto variants = candidates_of(*gpu::find_chooser(request.subject), on);
  std::vector<Candidate> candidates;
  for (const gpu::Variant* variant : variants) {
    const auto attention = std::make_shared<gpu::PreparedAttention>(*variant, on.spec, on.dtype, on.stream);
    candidates.push_back({variant->id(), on.timed([attention, &on] {
                            attention->enqueue(on.q.view(), on.k.view(), on.v.view(), on.out.view());
                          })});
  }
  TuneResult tuned;
  tuned.stages.push_back({request.subject, search(candidates, on.limits(request.budget_seconds))});
  tell(tuned.stages.back());
  const SearchResult& found = tuned.stages.back().result;
  gpu::TunedEntry entry = gpu::tuned_entry(request.subject, on.spec, on.dtype, on.device);
  entry.choice = variants.at(found.best)->id();
  entry.default_seconds = found.candidates.front().median;
  entry.seconds = found.candidates[found.best].ratio * entry.default_seconds;
  tuned.entries.push_back(std::move(entry));
  return tuned;
}

std::string known_subjects() {
  std::string names = kFlagship;
  for (const gpu::Chooser& chooser : gpu::choosers()) names += ", " + chooser.rung;
  return names;
}

}  // namespace

std::string tuned_subject(const std::string& word) {
  if (word == kFlagship) return word;
  for (const gpu::Chooser& chooser : gpu::choosers()) {
    if (chooser.rung == word || chooser.rung.substr(0, chooser.rung.find('/')) == word) return chooser.rung;
  }
  throw InvalidArgument(fmt::format("'{}' cannot be tuned; there are: {}", word, known_subjects()));
}

Parameters tuned_defaults(const std::string& subject) {
  Parameters parameters;
  for (const ParameterInfo& info : problem_parameters()) parameters[info.name] = info.default_value;
  if (subject == kFlagship) {
    parameters["normalizer"] = std::string("entmax");
    return parameters;
  }
  const gpu::Limits& limits = gpu::find_variant(subject).limits;
  const auto& taken = limits.selections;
  if (std::ranges::find(taken, SelectionKind::all) == taken.end())
    parameters["selection"] = std::string(to_string(taken.front()));
  return parameters;
}

TuneResult tune(const TuneRequest& request, const std::function<void(const TuneStage&)>& tell) {
  check_problem(request.problem);
  gpu::require_device();
  gpu::use_tuned({});  // candidates are compared with rules and defaults, not with earlier tuning
  const DeviceProblem on(request);
  TuneResult result =
      request.subject == kFlagship ? tune_flagship(request, on, tell) : tune_rung(request, on, tell);
  for (gpu::TunedEntry& entry : result.entries) {
    entry.inputs = on.inputs;
    entry.measured = utc_now();
  }
  return result;
}

}  // namespace splash::experiments
