#include "experiments/tuning/flagship.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/timing.h"
#include "gpu/compute_capability.h"
#include "gpu/entmax/attention.h"
#include "gpu/entmax/schedule/block_place.h"

namespace splash::experiments {
namespace {

using gpu::entmax::EntmaxAttention;
using gpu::entmax::ForwardPath;
using gpu::entmax::Knob;
using gpu::entmax::Tuning;

// The input and the outputs of backward.
struct TunedGradients {
  explicit TunedGradients(const DeviceProblem& on)
      : d_out(gpu::DeviceTensor::from(on.stream, on.dtype,
                                      make_inputs<float>({.seed = 2, .query_variance = 1}, on.spec.shape).q)),
        d_q(on.stream, on.dtype, on.q.view().extents),
        d_k(on.stream, on.dtype, on.k.view().extents),
        d_v(on.stream, on.dtype, on.v.view().extents) {}
  gpu::DeviceTensor d_out, d_q, d_k, d_v;
};

// Searches the knobs of one pass, forward or backward, within its share of the budget.
class PassSearch {
 public:
  PassSearch(const DeviceProblem& on, const Tuning& forward, const TunedGradients* gradients, double budget,
             const std::function<void(const TuneStage&)>& tell)
      : on_(on), begins_with_(forward), gradients_(gradients), ends_(seconds_now() + budget), tell_(tell) {}

  Tuning run(TuneResult& result) {
    const bool backward = gradients_ != nullptr;
    Tuning best = begins_with_;
    const auto knobs = gpu::entmax::knobs();
    auto left = std::ranges::count_if(knobs, [&](const Knob& knob) { return knob.of_backward == backward; });
    for (const Knob& knob : knobs) {
      if (knob.of_backward != backward) continue;
      const auto tunings =
          tunings_of(knob, best, on_.spec, on_.dtype, gpu::compute_capability_of(on_.device));
      const double share = (ends_ - seconds_now()) / static_cast<double>(1 + left--);
      if (tunings.size() < 2 || share <= 0) continue;
      best = tunings.at(stage(knob.name, tunings, share, result).best);
    }
    double seconds = holder_seconds_, default_seconds = holder_seconds_;
    if (!(best == begins_with_)) {
      const SearchResult last =
          stage("default or tuned", {begins_with_, best}, std::max(0.1, ends_ - seconds_now()), result);
      default_seconds = last.candidates.front().median;
      seconds = last.candidates[last.best].ratio * default_seconds;
      if (last.best == 0) best = begins_with_;
    }
    result.entries.push_back(entry(best, seconds, default_seconds));
    return best;
  }

 private:
  Candidate candidate(const Tuning& tuning) const {
    const auto attention =
        std::make_shared<EntmaxAttention>(on_.spec, on_.dtype, on_.stream, 0, ForwardPath::fastest, tuning);
    const auto forward = [attention, &on = on_] {
      attention->forward(on.q.view(), on.k.view(), on.v.view(), on.out.view());
    };
    if (gradients_ == nullptr) return {name_of(tuning), on_.timed(forward)};
    forward();
    attention->ensure_stored();
    return {name_of(tuning), on_.timed([attention, &on = on_, &g = *gradients_] {
              attention->backward(on.q.view(), on.k.view(), on.v.view(), g.d_out.view(), g.d_q.view(),
                                  g.d_k.view(), g.d_v.view(), nullptr, gpu::entmax::StoreCheck::trust);
            })};
  }

  // Keeps only the knobs of this pass.
  Tuning of_pass(const Tuning& tuning) const {
    Tuning of_pass;
    for (const Knob& knob : gpu::entmax::knobs()) {
      if (knob.of_backward == (gradients_ != nullptr)) of_pass.*knob.value = tuning.*knob.value;
    }
    return of_pass;
  }
  std::string name_of(const Tuning& tuning) const { return to_string(of_pass(tuning)); }

  SearchResult stage(const std::string& what, const std::vector<Tuning>& tunings, double budget,
                     TuneResult& result) {
    std::vector<Candidate> candidates;
    for (const Tuning& tuning : tunings) candidates.push_back(candidate(tuning));
    result.stages.push_back({what, search(candidates, on_.limits(budget))});
    tell_(result.stages.back());
    holder_seconds_ = result.stages.back().result.candidates.front().median;
    return result.stages.back().result;
  }

  gpu::TunedEntry entry(const Tuning& best, double seconds, double default_seconds) const {
    const char* const subject =
        gradients_ != nullptr ? gpu::entmax::kBackwardSubject : gpu::entmax::kForwardSubject;
    gpu::TunedEntry entry = gpu::tuned_entry(subject, on_.spec, on_.dtype, on_.device);
    entry.choice = name_of(best);
    entry.seconds = seconds;
    entry.default_seconds = default_seconds;
    return entry;
  }

  const DeviceProblem& on_;
  Tuning begins_with_;
  const TunedGradients* gradients_;  // null: forward
  double ends_;
  double holder_seconds_ = 0;  // of the last stage's first candidate; 0: no stage yet
  const std::function<void(const TuneStage&)>& tell_;
};

}  // namespace

std::vector<Tuning> tunings_of(const Knob& knob, const Tuning& holds, const AttentionSpec& spec, Dtype dtype,
                               int compute_capability) {
  const auto path_of = [&](const Tuning& tuning) {
    return gpu::entmax::choose_path(spec, dtype, ForwardPath::fastest, compute_capability, tuning);
  };
  const std::string_view name = knob.name;
  const bool hopper = path_of(holds) == ForwardPath::hopper;
  const int64_t heads = spec.shape.batch * spec.shape.q_heads,
                rule = hopper ? gpu::entmax::heads_together(spec.shape.kv_len * spec.shape.head_dim,
                                                            spec.shape.group())
                              : heads;
  std::vector<Tuning> tunings{holds};
  if (knob.hopper_alone && !hopper) return tunings;
  if (name == "portable" && !hopper) return tunings;
  for (const int value : knob.allowed) {
    Tuning tuning = holds;
    tuning.*knob.value = value;
    if (tuning == holds) continue;
    // From kv_len on, all keys are sampled, so larger values make no difference.
    if (name == "sampled_keys" && value / 2 >= spec.shape.kv_len) continue;
    if (name == "heads_together" && (value >= heads || value == rule) && value != 0) continue;
    tunings.push_back(tuning);
  }
  return tunings;
}

TuneResult tune_flagship(const TuneRequest& request, const DeviceProblem& on,
                         const std::function<void(const TuneStage&)>& tell) {
  gpu::entmax::require_forward(on.spec, on.dtype);
  TuneResult result;
  const double share = request.with_backward ? 0.75 : 1;
  const Tuning forward = PassSearch(on, {}, nullptr, share * request.budget_seconds, tell).run(result);
  if (!request.with_backward) return result;
  const TunedGradients gradients(on);
  PassSearch(on, forward, &gradients, (1 - share) * request.budget_seconds, tell).run(result);
  return result;
}

}  // namespace splash::experiments
