#include "core/scratch_folder.h"

#include <fstream>

#include <doctest/doctest.h>

using namespace splash;

TEST_CASE("a scratch folder is empty and its own, and goes with all that is in it") {
  std::string path;
  {
    const ScratchFolder folder, other;
    path = folder.string();
    CHECK(std::filesystem::is_empty(path));
    CHECK(other.string() != path);
    std::filesystem::create_directory(folder / "a");
    std::ofstream(folder.file("a/file")) << "text";
    CHECK(std::filesystem::file_size(folder / "a" / "file") == 4);
  }
  CHECK(!std::filesystem::exists(path));
}
