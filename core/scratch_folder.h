#pragma once
// A temporary folder that is removed with its owner.

#include <filesystem>
#include <string>

namespace splash {

class ScratchFolder {
 public:
  // Makes an empty folder in the system's temporary folder. Throws Error if it cannot.
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string string() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace splash
