#include "experiments/cli/ncu_program.h"

#include <cstdlib>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text_file.h"
#include "experiments/cli/command.h"
#include "experiments/cli/places.h"

namespace splash::cli {
namespace {

constexpr int64_t kMostPrinted = int64_t{1} << 30;  // bytes
constexpr int kNotStarted = 127;

// A new file that is gone with its owner.
class ScratchFile {
 public:
  ScratchFile() : path_((std::filesystem::temp_directory_path() / "splash-ncu-XXXXXX").string()) {
    const int file = mkstemp(path_.data());
    if (file < 0) throw InvalidArgument(fmt::format("no file can be made in the folder of {}", path_));
    close(file);
  }
  ~ScratchFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

bool is_ncu_report(const std::string& path) {
  return path.ends_with(".ncu-rep");
}

std::string printed_by_ncu(const std::string& path) {
  require_regular_file("ncu's report", path);
  const Words words{"ncu", "--import", path, "--csv", "--page", "raw"};
  const ScratchFile printed;
  const int code = run_program(words, {{"LC_ALL", "C"}}, false, printed.path());
  if (code == kNotStarted) {
    throw InvalidArgument(fmt::format(
        "it is in ncu's own format, and there is no ncu on the PATH to read it: where ncu is installed, run "
        "'{} > table.csv', and import table.csv",
        quoted(words)));
  }
  std::string text = read_text_file("what ncu printed in", printed.path(), kMostPrinted);
  if (code != 0) {
    throw InvalidArgument(fmt::format("ncu could not read it: {}",
                                      text.empty() ? "it says nothing" : text.substr(0, text.find('\n'))));
  }
  return text;
}

}  // namespace splash::cli
