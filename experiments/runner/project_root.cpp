#include "experiments/runner/project_root.h"

#include <cstdlib>

namespace splash::experiments {

std::string project_root() {
  const char* root = std::getenv("SPLASH_ROOT");
  return root != nullptr && *root != '\0' ? root : SPLASH_SOURCE_DIR;
}

std::vector<std::string> definition_folders() {
  std::vector<std::string> folders;
  for (const char* name : {"definitions", "ladders", "flagship", "decode", "papers", "kascade", "model",
                           "distributed", "distributed/many"})
    folders.push_back(project_root() + "/experiments/" + name);
  return folders;
}

std::string machines_folder() {
  return project_root() + "/data/machines";
}

}  // namespace splash::experiments
