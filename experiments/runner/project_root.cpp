#include "experiments/runner/project_root.h"

#include <cstdlib>

namespace splash::experiments {

std::string project_root() {
  const char* root = std::getenv("SPLASH_ROOT");
  return root != nullptr && *root != '\0' ? root : SPLASH_SOURCE_DIR;
}

}  // namespace splash::experiments
