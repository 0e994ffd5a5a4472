#include "core/text_file.h"

#include <fstream>
#include <sys/stat.h>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/scratch_folder.h"

using namespace splash;

TEST_CASE("a text file is read whole, up to the bytes that are allowed") {
  const ScratchFolder folder;
  const std::string path = folder.file("text");
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
  const ScratchFolder folder;
  const std::string pipe = folder.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(read_text_file("it", pipe, 9), doctest::Contains("not a regular file"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(read_text_file("it", "/dev/zero", 9), doctest::Contains("not a regular"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(read_text_file("it", folder.string(), 9), doctest::Contains("folder"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(read_text_file("it", folder.file("none"), 9), doctest::Contains("No such file"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(require_regular_file("it", pipe), doctest::Contains("not a regular file"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(require_regular_file("it", folder.file("none")), doctest::Contains("No such file"),
                       InvalidArgument);
}
