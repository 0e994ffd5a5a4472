#include "report/atomic_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::report {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const std::string& what, int error) {
  throw ReportError(fmt::format("{}: {} ({})", path, what, std::strerror(error)));
}

// The path to rename to, with symbolic links followed. Refuses devices, pipes and folders: renaming over
// /dev/null would replace it.
fs::path destination(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status))
    throw ReportError(fmt::format("{}: is a folder, a file name is needed", path));
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw ReportError(fmt::format("{}: is not a regular file, nothing is written there", path));
  }
  fs::path target = path;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    target = fs::canonical(path, error);
    if (error) throw ReportError(fmt::format("{}: is a link that leads nowhere", path));
  }
  if (target.filename().empty()) throw ReportError(fmt::format("\"{}\": a file name is needed", path));
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, error)) {
    throw ReportError(fmt::format("{}: cannot be written, {} is no folder", path, folder.string()));
  }
  return target;
}

// A file under its temporary name. It is removed unless it was renamed.
class TemporaryFile {
 public:
  TemporaryFile(const fs::path& target, std::string path_for_messages) : path_(std::move(path_for_messages)) {
    // A killed process may have left a file of this name, and other programs may own one. Neither is written
    // to.
    constexpr int kNames = 1000;
    for (int n = 0; n < kNames && descriptor_ < 0; ++n) {
      name_ = target.parent_path() / fmt::format(".{}.tmp.{}.{}", target.filename().string(), getpid(), n);
      descriptor_ = open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && errno != EEXIST) break;
    }
    if (descriptor_ < 0) fail(path_, "cannot be written, its folder takes no new file", errno);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!renamed_) unlink(name_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    constexpr size_t kAtOnce = size_t{1} << 26;
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kAtOnce));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail(path_, "cannot be written in full", written < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    if (fsync(descriptor_) != 0) fail(path_, "cannot be brought to disk", errno);
    const int descriptor = std::exchange(descriptor_, -1);
    if (close(descriptor) != 0)
      fail(path_, "cannot be brought to disk", errno);  // NFS reports a full disk here
  }

  void rename_to(const fs::path& target) {
    if (std::rename(name_.c_str(), target.c_str()) != 0) fail(path_, "cannot be put in place", errno);
    renamed_ = true;
  }

 private:
  std::string path_;
  fs::path name_;
  int descriptor_ = -1;
  bool renamed_ = false;
};

// Makes the rename survive a power cut. Some file systems cannot sync a folder; the file is in place even so.
void sync_folder(const fs::path& folder) {
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

}  // namespace

void write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  const fs::path target = destination(path);
  TemporaryFile file(target, path);
  file.write(bytes);
  file.rename_to(target);
  sync_folder(target.parent_path());
}

void prepare_place(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) throw ReportError(fmt::format("cannot create {}: {}", folder.string(), error.message()));
  const TemporaryFile tried(destination(path), path);
}

}  // namespace splash::report
