#include "core/scratch_folder.h"

#include <cstdlib>
#include <system_error>

#include <fmt/format.h>

#include "core/error.h"

namespace splash {

ScratchFolder::ScratchFolder() {
  const std::filesystem::path place = std::filesystem::temp_directory_path();
  std::string name = (place / "splash-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw Error(fmt::format("cannot make a folder in {}", place.string()));
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace splash
