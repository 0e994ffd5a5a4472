#pragma once
// The captured tensors that the project ships, in data/captures.

#include <string>
#include <vector>

namespace splash::experiments {

// Values of `input` that stand for a shipped file of the schema in analysis/capture.h: "smollm2",
// "smollm2-converted".
const std::vector<std::string>& shipped_capture_names();

// Path of NAME.h5 ("minilm", "smollm2"). $SPLASH_CAPTURES, if set, is the path of minilm.h5, and other
// captures are looked for beside it. If it is not set, or a capture is not beside it, looks for data/captures
// in the working directory and the folders above it, then above the running program, then above the sources
// it was built from. Throws ReportError if it is nowhere.
std::string shipped_capture(const std::string& name);

}  // namespace splash::experiments
