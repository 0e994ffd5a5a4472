#include "report/hdf5/apart.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"
#include "report/hdf5/internal.h"

namespace splash::report::hdf5 {
namespace {

enum Outcome : int { survived = 0, refused = 10, bad_argument = 11, out_of_memory = 12, odd = 13 };

constexpr rlim_t kBytes = rlim_t{1} << 30, kBytesPerByte = 64;
constexpr rlim_t kSeconds = 10, kBytesPerSecond = 1 << 20;
constexpr size_t kLongestSentence = 1 << 16;

void limit(__rlimit_resource what, rlim_t to) {
  rlimit current{};
  getrlimit(what, &current);
  if (current.rlim_max < to) to = current.rlim_max;
  current.rlim_cur = to;
  setrlimit(what, &current);
}

rlim_t address_space() {  // of this process, in bytes; sanitizers reserve terabytes
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

void limit_child(rlim_t file_bytes) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGXCPU, SIGTERM}) {
    std::signal(signal, SIG_DFL);
  }
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, kSeconds + file_bytes / kBytesPerSecond);
  const rlim_t used = address_space();
  if (used > 0) limit(RLIMIT_AS, used + kBytes + kBytesPerByte * file_bytes);  // 0: there is no /proc
#if !defined(__SANITIZE_ADDRESS__) && !defined(SPLASH_FUZZ)
  // Hides what the C library prints about a heap that HDF5 has corrupted; the error says it in this project's
  // words.
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
#endif
}

int outcome_of(const std::function<void()>& read, std::string& sentence) {
  try {
    read();
    return survived;
  } catch (const ReportError& error) {
    sentence = error.what();
    return refused;
  } catch (const InvalidArgument& error) {
    sentence = error.what();
    return bad_argument;
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  } catch (const std::exception& error) {
    sentence = error.what();
    return odd;
  }
}

[[noreturn]] void run_child(rlim_t file_bytes, const std::function<void()>& read, int answer) {
  limit_child(file_bytes);
  std::string sentence;
  const int outcome = outcome_of(read, sentence);
  // A pipe takes this much at once; if it were full, the parent would read it.
  sentence.resize(std::min(sentence.size(), kLongestSentence));
  size_t written = 0;
  while (written < sentence.size()) {
    const ssize_t count = ::write(answer, sentence.data() + written, sentence.size() - written);
    if (count < 0 && errno != EINTR) break;
    if (count > 0) written += static_cast<size_t>(count);
  }
  _exit(outcome);  // flushes and destroys nothing of the parent's
}

std::string answer_from(int pipe) {
  std::string text;
  char piece[4096];
  for (ssize_t count = 0; (count = ::read(pipe, piece, sizeof piece)) != 0;) {
    if (count > 0) text.append(piece, static_cast<size_t>(count));
    if (count < 0 && errno != EINTR) break;
  }
  return text;
}

[[noreturn]] void throw_for(const std::string& path, int status, const std::string& sentence) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (signal == SIGXCPU) {
      throw ReportError(fmt::format("{}: is damaged, HDF5 comes to no end with it", path));
    }
    throw ReportError(fmt::format("{}: is damaged, HDF5 crashes on it ({})", path, strsignal(signal)));
  }
  switch (WEXITSTATUS(status)) {
    case refused:
      throw ReportError(sentence);
    case bad_argument:
      throw InvalidArgument(sentence);
    case out_of_memory:
      throw ReportError(fmt::format("{}: claims more memory than a file of its size may", path));
    default:
      throw Error(fmt::format("{}: the process that tried to read it ended with {}{}{}", path,
                              WEXITSTATUS(status), sentence.empty() ? "" : ": ", sentence));
  }
}

}  // namespace

void try_apart(const std::string& path, const std::function<void()>& read) {
  silence_hdf5();  // once in this process, not in every child
  std::error_code none;
  const uintmax_t size = std::filesystem::file_size(path, none);
  const auto file_bytes = none ? rlim_t{0} : static_cast<rlim_t>(size);
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) {
    throw ReportError(fmt::format("{}: cannot be read, there is no pipe ({})", path, std::strerror(errno)));
  }
  const pid_t child = fork();
  if (child == 0) run_child(file_bytes, read, pipe[1]);
  const int error = errno;
  close(pipe[1]);
  if (child < 0) {
    close(pipe[0]);
    throw ReportError(
        fmt::format("{}: cannot be read, there is no process for it ({})", path, std::strerror(error)));
  }
  const std::string sentence = answer_from(pipe[0]);
  close(pipe[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != survived) throw_for(path, status, sentence);
}

}  // namespace splash::report::hdf5
