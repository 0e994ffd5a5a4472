#pragma once
// Where the project's own files are.

#include <string>

namespace splash::experiments {

// $SPLASH_ROOT, else the folder that this program was built from.
std::string project_root();

}  // namespace splash::experiments
