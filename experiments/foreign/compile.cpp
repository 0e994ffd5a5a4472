#include "experiments/foreign/compile.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/runner/project_root.h"

namespace splash::experiments {
namespace {

namespace fs = std::filesystem;

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string nvcc() {
  if (const std::string chosen = setting("CUDACXX"); !chosen.empty()) return chosen;
  std::istringstream folders(setting("PATH") + ":/usr/local/cuda/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string program = (fs::path(folder) / "nvcc").string();
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  throw InvalidArgument(
      "a .cu file needs nvcc, which is neither on the PATH nor in /usr/local/cuda; CUDACXX names another");
}

bool names_architecture(const std::vector<std::string>& flags) {
  return std::any_of(flags.begin(), flags.end(), [](const std::string& flag) {
    return flag.starts_with("-arch") || flag.starts_with("--gpu-architecture") ||
           flag.starts_with("-gencode") || flag.starts_with("--generate-code");
  });
}

}  // namespace

std::string bench_header_folder() {
  return project_root() + "/experiments/foreign";
}

std::vector<std::string> compile_words(const std::string& source, const std::string& program,
                                       const std::vector<std::string>& flags) {
  const std::string end = fs::path(source).extension().string();
  std::vector<std::string> words;
  if (end == ".cu") {
    words = {nvcc(), "-O3", "-std=c++17", "-Wno-deprecated-gpu-targets"};
    if (!names_architecture(flags)) words.emplace_back("-arch=native");
  } else if (end == ".cpp" || end == ".cc" || end == ".cxx") {
    const std::string chosen = setting("CXX");
    words = {chosen.empty() ? "c++" : chosen, "-O3", "-std=c++17", "-march=native", "-fopenmp"};
  } else {
    throw InvalidArgument(
        fmt::format("'{}' is no kernel to bench: there are .cu, .cpp, .cc, .cxx, .py and .json", source));
  }
  words.insert(words.end(), {"-I" + bench_header_folder(), source, "-o", program});
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

std::vector<std::string> counting_words(const std::string& source, const std::string& ptx,
                                        int compute_capability, const std::vector<std::string>& flags) {
  std::vector<std::string> words{
      nvcc(), "-O3", "-std=c++17", "-Wno-deprecated-gpu-targets", "-ptx", "-DSPLASH_BENCH_COUNT"};
  if (!names_architecture(flags)) words.push_back(fmt::format("-arch=compute_{}", compute_capability));
  words.insert(words.end(), {"-I" + bench_header_folder(), source, "-o", ptx});
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

}  // namespace splash::experiments
