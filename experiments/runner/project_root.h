#pragma once
// The folders of the project's own files.

#include <string>
#include <vector>

namespace splash::experiments {

// $SPLASH_ROOT, else the folder that this program was built from.
std::string project_root();

// The folders of definitions that the project ships.
std::vector<std::string> definition_folders();

std::string machines_folder();  // data/machines, one file per GPU (analysis/machine.h)

}  // namespace splash::experiments
