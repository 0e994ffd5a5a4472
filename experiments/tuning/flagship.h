#pragma once
// Tunes the flagship's knobs (gpu/entmax/tuning.h) one after the other; the best value of each stays while
// the next is tried. At the end the result is timed against the default, which stays unless the result is
// faster.

#include "experiments/tuning/device_problem.h"
#include "gpu/entmax/knobs.h"

namespace splash::experiments {

TuneResult tune_flagship(const TuneRequest& request, const DeviceProblem& on,
                         const std::function<void(const TuneStage&)>& tell);

// The tunings to try for a knob, the current one first: all allowed values except those without effect on
// this problem. compute_capability: 90 for 9.0.
std::vector<gpu::entmax::Tuning> tunings_of(const gpu::entmax::Knob& knob, const gpu::entmax::Tuning& holds,
                                            const AttentionSpec& spec, Dtype dtype, int compute_capability);

}  // namespace splash::experiments
