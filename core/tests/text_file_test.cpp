#include "core/text_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>

#include <doctest/doctest.h>

#include "core/error.h"

using namespace splash;

namespace {

struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "splash-text-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path path;
};

}  // namespace

TEST_CASE("a text file is read whole, up to the bytes that are allowed") {
  const Folder folder;
  const std::string path = folder.path / "text";
  for (const size_t size : {size_t{0}, size_t{1}, size_t{65536}, size_t{200001}}) {
    const std::string text(size, 'x');
    std::ofstream(path, std::ios::binary) << text;
    CHECK(read_text_file("it", path, 200001) == text);
  }
  CHECK_THROWS_WITH_AS(
      read_text_file("the list", path, 200000),
      ("cannot read the list " + path + ": it holds more than the allowed 200000 bytes").c_str(),
      InvalidArgument);
}

TEST_CASE("what is not a regular file is refused at once") {
  const Folder folder;
  const std::string pipe = folder.path / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(read_text_file("it", pipe, 9), doctest::Contains("not a regular file"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(read_text_file("it", "/dev/zero", 9), doctest::Contains("not a regular"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(read_text_file("it", folder.path, 9), doctest::Contains("folder"), InvalidArgument);
  CHECK_THROWS_WITH_AS(read_text_file("it", folder.path / "none", 9), doctest::Contains("No such file"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(require_regular_file("it", pipe), doctest::Contains("not a regular file"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(require_regular_file("it", folder.path / "none"), doctest::Contains("No such file"),
                       InvalidArgument);
}
