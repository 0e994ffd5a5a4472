#include "experiments/kinds/support/shipped_captures.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::experiments {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEncoder = "minilm";

fs::path find_capture_upwards(fs::path folder, const std::string& file) {
  for (;; folder = folder.parent_path()) {
    fs::path candidate = folder / "data" / "captures" / file;
    std::error_code ignored;
    if (fs::exists(candidate, ignored)) return candidate;
    if (folder == folder.parent_path()) return {};
  }
}

}  // namespace

const std::vector<std::string>& shipped_capture_names() {
  static const std::vector<std::string> names{"smollm2", "smollm2-converted"};
  return names;
}

std::string shipped_capture(const std::string& name) {
  const std::string file = name + ".h5";
  std::error_code ignored;
  if (const char* named = std::getenv("SPLASH_CAPTURES")) {
    if (name == kEncoder) return named;
    if (const fs::path beside = fs::path(named).parent_path() / file; fs::exists(beside, ignored))
      return beside.string();
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& start : {fs::current_path(ignored), program, fs::path(SPLASH_SOURCE_DIR)}) {
    if (const fs::path found = find_capture_upwards(start, file); !found.empty()) return found.string();
  }
  throw ReportError(fmt::format(
      "data/captures/{} was not found above the working directory, the program or its sources; set "
      "SPLASH_CAPTURES to the place of minilm.h5, beside which it is looked for",
      file));
}

}  // namespace splash::experiments
