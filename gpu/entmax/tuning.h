#pragma once
// The flagship's knobs that are not template arguments: their values, and their text form. The result is
// exact for every setting; only the order in which backward's sums round may differ. Compiles without nvcc.
//
//   Tuning tuning;
//   tuning.sampled_keys = 2048;
//   EntmaxAttention attention(spec, Dtype::bf16, stream, 0, ForwardPath::fastest, tuning);

#include <string>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/device.h"

namespace splash::gpu::entmax {

// Measurements use the defaults unless they say otherwise.
struct Tuning {
  int portable = 0;         // 1: the portable path, also where Hopper's takes the problem
  int sampled_keys = 4096;  // Hopper: keys of the sampling pass, of up to 16384 (problem.h)
  int heads_together = 0;   // heads whose blocks are neighbours; 0: by keys and group on Hopper, else all
  int long_parts = 512;     // backward: into how many parts a key with many entries is cut, at most

  bool operator==(const Tuning&) const = default;
};

// Throws InvalidArgument, naming the knob and what it allows.
void validate(const Tuning& tuning);

// "default", or the knobs that differ from it: "sampled_keys=2048,long_parts=256". Reading it throws
// InvalidArgument where a knob or its value is not allowed.
std::string to_string(const Tuning& tuning);
Tuning tuning_from_string(const std::string& text);

// The subjects under which the tuning search stores its results (gpu/engine/tuned.h).
inline constexpr const char* kForwardSubject = "entmax-forward";
inline constexpr const char* kBackwardSubject = "entmax-backward";

// The default, overridden by what was measured on this device for this problem, where it was measured.
Tuning tuned_for(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device);

}  // namespace splash::gpu::entmax
