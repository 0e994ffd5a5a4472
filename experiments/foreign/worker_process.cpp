#include "experiments/foreign/worker_process.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <fstream>
#include <limits>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text.h"
#include "experiments/runner/start_program.h"

namespace splash::experiments {
namespace {

constexpr std::size_t kLongestAnswer = 1 << 20;
constexpr int kWordsAt = 3, kMemoryAt = 4;  // file descriptors of the worker

}  // namespace

WorkerProcess::WorkerProcess(std::string name, const std::vector<std::string>& words,
                             const std::map<std::string, std::string>& environment)
    : name_(std::move(name)) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw Error(fmt::format("no socket could be opened for {}", name_));
  socket_ = ends[0];
  memory_ = memfd_create("splash-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const std::string errors = folder_.file("errors");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  // The numbers may be taken by what is to be moved there: first to numbers above, which close with the
  // program's start.
  constexpr int kAbove = 100;
  const int words_end = fcntl(ends[1], F_DUPFD_CLOEXEC, kAbove),
            memory_end = fcntl(memory_, F_DUPFD_CLOEXEC, kAbove);
  posix_spawn_file_actions_adddup2(&files, words_end, kWordsAt);
  posix_spawn_file_actions_adddup2(&files, memory_end, kMemoryAt);
  const int failed = memory_ < 0 || words_end < 0 || memory_end < 0
                         ? ENOMEM
                         : start_program(words, environment, files, child_);
  posix_spawn_file_actions_destroy(&files);
  for (const int end : {ends[1], words_end, memory_end}) close(end);
  if (failed == 0) return;
  child_ = -1;
  close(socket_);
  close(memory_);
  throw Error(fmt::format("{} could not be started: {}", name_, words.front()));
}

WorkerProcess::~WorkerProcess() {
  close(socket_);
  close(memory_);
  if (shared_ != nullptr) munmap(shared_, static_cast<std::size_t>(shared_bytes_));
  if (child_ <= 0) return;
  kill(child_, SIGKILL);
  int status = 0;
  while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
}

char* WorkerProcess::share(int64_t bytes) {
  void* memory = MAP_FAILED;
  if (ftruncate(memory_, bytes) == 0 &&
      fcntl(memory_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
    memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
  if (memory == MAP_FAILED)
    throw Error(fmt::format("there is no memory for the {} bytes of {}", bytes, name_));
  shared_bytes_ = bytes;
  return shared_ = static_cast<char*>(memory);
}

double WorkerProcess::processor_seconds() const {
  clockid_t clock = 0;
  timespec used{};
  if (clock_getcpuclockid(child_, &clock) != 0 || clock_gettime(clock, &used) != 0)
    return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

std::string WorkerProcess::last_words() {
  int status = 0;
  for (int trial = 0; trial < 100 && child_ > 0;
       ++trial) {  // its end of the socket is closed: it ends, or hides that it does not
    if (waitpid(child_, &status, WNOHANG) == child_) child_ = -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(child_ > 0 ? 10 : 0));
  }
  std::ifstream file(folder_ / "errors");
  std::string line,
      last = child_ < 0 && WIFSIGNALED(status)
                 ? fmt::format("by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                 : "it said nothing";
  while (std::getline(file, line)) {
    if (line.find_first_not_of(' ') != std::string::npos) last = line;
  }
  constexpr std::size_t kMost = 300;
  return one_line(last.substr(0, kMost));
}

nlohmann::json WorkerProcess::ask(const std::string& line, double timeout) {
  const std::string text = line + "\n";
  const auto ended = [&] { return Error(fmt::format("the process of {} ended: {}", name_, last_words())); };
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw ended();
    sent += static_cast<std::size_t>(n);
  }
  std::string answer;
  for (std::size_t end = 0; (end = pending_.find('\n')) == std::string::npos;) {
    pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
    const int ready = poll(&waiting, 1, static_cast<int>(1e3 * timeout));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) throw Error(fmt::format("{} did not answer within {:g} s", name_, timeout));
    std::array<char, 65536> chunk{};
    const ssize_t n = read(socket_, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw ended();
    pending_.append(chunk.data(), static_cast<std::size_t>(n));
    if (pending_.size() > kLongestAnswer)
      throw Error(fmt::format("{} answers with more than {} bytes", name_, kLongestAnswer));
  }
  answer = pending_.substr(0, pending_.find('\n'));
  pending_.erase(0, answer.size() + 1);
  nlohmann::json json = nlohmann::json::parse(answer, nullptr, false);
  if (!json.is_object()) throw Error(fmt::format("{} answers with what is no JSON object", name_));
  if (json.contains("error") && json["error"].is_string())
    throw Error(fmt::format("{}: {}", name_, one_line(json["error"].get<std::string>())));
  return json;
}

}  // namespace splash::experiments
