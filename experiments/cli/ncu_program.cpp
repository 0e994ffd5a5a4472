#include "experiments/cli/ncu_program.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text_file.h"
#include "experiments/cli/command.h"

namespace splash::cli {
namespace {

constexpr std::size_t kMostPrinted = std::size_t{1} << 30;

bool on_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((std::filesystem::path(folder) / program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

}  // namespace

bool is_ncu_report(const std::string& path) {
  return path.ends_with(".ncu-rep");
}

std::string printed_by_ncu(const std::string& path) {
  require_regular_file("ncu's report", path);
  const std::string words = quoted({"ncu", "--import", path, "--csv", "--page", "raw"});
  if (!on_path("ncu")) {
    throw InvalidArgument(
        fmt::format("{} is in ncu's own format and there is no ncu on the PATH to read it: where ncu is "
                    "installed, run '{} > "
                    "table.csv', and import table.csv",
                    path, words));
  }
  std::FILE* const pipe = popen(("LC_ALL=C " + words).c_str(), "r");
  if (pipe == nullptr) throw InvalidArgument(fmt::format("ncu could not be started to read {}", path));
  std::string text;
  std::array<char, 1 << 16> piece{};
  for (std::size_t size = 0; (size = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;) {
    if (text.size() + size <= kMostPrinted) text.append(piece.data(), size);
  }
  const int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw InvalidArgument(fmt::format("ncu could not read {}: {}", path,
                                      text.empty() ? "it says nothing" : text.substr(0, text.find('\n'))));
  }
  return text;
}

}  // namespace splash::cli
