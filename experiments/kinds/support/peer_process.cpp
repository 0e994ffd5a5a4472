#include "experiments/kinds/support/peer_process.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/runner/project_root.h"

extern char** environ;

namespace splash::experiments {
namespace {

namespace fs = std::filesystem;

std::streamsize bytes_of(const Tensor<float>& t) {
  return static_cast<std::streamsize>(t.size() * sizeof(float));
}

std::string python() {
  for (const char* name : {"SPLASH_PEER_PYTHON", "SPLASH_PYTHON"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "python3";
}

std::string last_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line, last = "it said nothing";
  while (std::getline(file, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

}  // namespace

void write_tensor(const fs::path& path, const Tensor<float>& tensor) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(tensor.data()), bytes_of(tensor));
  if (!file.flush()) throw Error(fmt::format("cannot write {}; is the disk full?", path.string()));
}

void read_tensor(const fs::path& path, Tensor<float>& tensor) {
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(tensor.data()), bytes_of(tensor));
  if (!file) throw Error(fmt::format("{} does not hold {} bytes", path.string(), bytes_of(tensor)));
}

PeerProcess::PeerProcess(const std::string& script, const std::string& packages)
    : script_(script), packages_(packages) {
  const std::string program = python();
  const std::string path = (fs::path(project_root()) / "experiments/peers" / script).string();
  const std::string errors = (folder_ / "errors").string();
  std::array<int, 2>
      socket{};  // a socket, not pipes: writing to a peer that has ended must not raise SIGPIPE
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socket.data()) != 0)
    throw Error(fmt::format("cannot open a socket for the peer {}", script));
  to_child_ = from_child_ = socket[0];
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, socket[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, socket[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  std::array<char*, 3> words{const_cast<char*>(program.c_str()), const_cast<char*>(path.c_str()), nullptr};
  const int failed = posix_spawnp(&child_, program.c_str(), &files, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  close(socket[1]);
  if (failed != 0) {
    child_ = -1;
    unavailable_ = fmt::format("{}: not found", program);
  }
}

PeerProcess::~PeerProcess() {
  close(to_child_);  // ends its standard input, which ends the peer
  int status = 0;
  while (child_ > 0 && waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
}

bool PeerProcess::send(const std::string& line) const {
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t n = ::send(to_child_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

bool PeerProcess::receive(std::string& line) {
  for (;;) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return true;
    }
    std::array<char, 65536> chunk{};
    const ssize_t n = read(from_child_, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    pending_.append(chunk.data(), static_cast<size_t>(n));
  }
}

nlohmann::json PeerProcess::ask(const nlohmann::json& request) {
  std::string answer;
  if (unavailable_.empty() && send(request.dump() + "\n") && receive(answer))
    return nlohmann::json::parse(answer);
  if (unavailable_.empty()) {
    const std::string errors = last_line(folder_ / "errors");
    if (errors.find("ModuleNotFoundError") == std::string::npos)
      throw Error(fmt::format("the peer {} failed: {}", script_, errors));
    unavailable_ = errors;
  }
  return {{"unavailable",
           fmt::format("{} (set SPLASH_PEER_PYTHON to a Python that has {})", unavailable_, packages_)}};
}

}  // namespace splash::experiments
