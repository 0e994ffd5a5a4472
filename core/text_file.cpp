#include "core/text_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"

namespace splash {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& path, const std::string& why) {
  throw InvalidArgument(fmt::format("cannot read {} {}: {}", what, path, why));
}

std::string why_not_regular(const struct stat& status) {
  if (S_ISREG(status.st_mode)) return "";
  return S_ISDIR(status.st_mode) ? "it is a folder, not a file" : "it is not a regular file";
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& path)  // opening a pipe must not wait for its writer
      : number_(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

std::string read_text_file(const std::string& what, const std::string& path, int64_t most_bytes) {
  const Descriptor file(path);
  struct stat status {};
  if (file.number() < 0 || fstat(file.number(), &status) != 0) refuse(what, path, std::strerror(errno));
  if (const std::string why = why_not_regular(status); !why.empty()) refuse(what, path, why);
  const auto too_large = [&] {
    refuse(what, path, fmt::format("it holds more than the allowed {} bytes", most_bytes));
  };
  if (status.st_size > most_bytes) too_large();
  std::string text;
  std::string piece(size_t{1} << 16, '\0');
  for (ssize_t count = 0; (count = read(file.number(), piece.data(), piece.size())) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(what, path, std::strerror(errno));
    text.append(piece, 0, static_cast<size_t>(count));
    if (static_cast<int64_t>(text.size()) > most_bytes) too_large();
  }
  return text;
}

void require_regular_file(const std::string& what, const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) refuse(what, path, std::strerror(errno));
  if (const std::string why = why_not_regular(status); !why.empty()) refuse(what, path, why);
}

}  // namespace splash
