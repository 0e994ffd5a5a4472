#pragma once
// The captured tensors that the project ships, in data/captures.

#include <string>
#include <vector>

namespace splash::experiments {

// Inputs of experiments that stand for a file of the schema in analysis/capture.h: "smollm2".
const std::vector<std::string>& shipped_capture_names();

// Path of NAME.h5 ("minilm", "smollm2"): for minilm $SPLASH_CAPTURES, for others beside it; where that is not
// set, or has no such file beside it, data/captures in the first folder upwards from the working directory,
// the running program, or the sources it was built from. Throws ReportError: nowhere.
std::string shipped_capture(const std::string& name);

}  // namespace splash::experiments
