#pragma once
// The flagship's knobs (gpu/entmax/tuning.h), one after the other: the best value of each stays while the
// next is tried. At last the default meets what came out, and holds unless that is faster.

#include "experiments/tuning/device_problem.h"
#include "gpu/entmax/knobs.h"

namespace splash::experiments {

TuneResult tune_flagship(const TuneRequest& request, const DeviceProblem& on,
                         const std::function<void(const TuneStage&)>& tell);

// The tunings to try of a knob, the one that holds first: all allowed values but those that change nothing
// for this problem. compute_capability: 90 for 9.0.
std::vector<gpu::entmax::Tuning> tunings_of(const gpu::entmax::Knob& knob, const gpu::entmax::Tuning& holds,
                                            const AttentionSpec& spec, Dtype dtype, int compute_capability);

}  // namespace splash::experiments
