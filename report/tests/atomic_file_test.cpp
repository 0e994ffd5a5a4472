#include "report/atomic_file.h"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

#include "core/error.h"
#include "report/io.h"
#include "report/tests/example_report.h"
#include "report/tests/report_equality.h"

using namespace splash;
using namespace splash::report;
using namespace splash::report::testing;

namespace {

Report large_report(const std::string& title) {
  Report report;
  report.title = title;
  std::vector<double> numbers;
  for (int i = 0; i < 200000; ++i) numbers.push_back(std::sin(i * 1.1));  // hardly compressible
  report.results = {number_column("value", numbers)};
  return report;
}

// The outcome of writing in a child process that `confine` restricts: 0 done, 1 ReportError; otherwise it
// died.
template <class Confine>
int write_in_child(const std::string& path, Confine confine) {
  std::cout.flush();  // otherwise the child prints it again
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    confine();
    try {
      write_report(path, large_report("new"));
    } catch (const ReportError&) {
      exit(1);  // exit, not _exit: HDF5 closes its library then, which must neither hang nor crash
    }
    exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void forbid_files_past(rlim_t bytes) {
  signal(SIGXFSZ, SIG_IGN);  // so that write() fails with EFBIG, as it would with ENOSPC
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_FSIZE, &limit);
}

}  // namespace

TEST_CASE("a place that takes no file is an error, and nothing is left behind") {
  const ScratchFolder folder;
  const Report report = example_report();
  CHECK_THROWS_WITH_AS(write_report(folder.file("none/report.h5"), report), doctest::Contains("is no folder"),
                       ReportError);
  CHECK_THROWS_WITH_AS(write_report(folder.file(""), report), doctest::Contains("is a folder"), ReportError);
  CHECK_THROWS_AS(write_report("", report), ReportError);
  CHECK_THROWS_AS(write_report("/proc/report.h5", report), ReportError);
  CHECK_THROWS_WITH_AS(write_report("/dev/null", report), doctest::Contains("not a regular file"),
                       ReportError);
  CHECK(std::filesystem::is_character_file("/dev/null"));
  CHECK_THROWS_AS(write_report(folder.file(std::string(300, 'n')), report), ReportError);
  CHECK(entries(folder) == 0);
}

TEST_CASE("a read-only folder is an error") {
  const ScratchFolder folder;
  chmod(folder.file("").c_str(), 0500);
  if (access(folder.file("").c_str(), W_OK) != 0) {  // root may write even so
    CHECK_THROWS_WITH_AS(write_report(folder.file("report.h5"), example_report()),
                         doctest::Contains("denied"), ReportError);
  }
  chmod(folder.file("").c_str(), 0700);
}

TEST_CASE("a full disk is an error, at whatever byte, and leaves the old file alone") {
  const ScratchFolder folder;
  const std::string path = folder.file("report.h5");
  for (const rlim_t bytes : {0, 1, 100, 4096, 100000, 1000000}) {
    CAPTURE(bytes);
    CHECK(write_in_child(path, [&] { forbid_files_past(bytes); }) == 1);
    CHECK(entries(folder) == 0);
  }
  write_report(path, example_report());
  CHECK(write_in_child(path, [] { forbid_files_past(100000); }) == 1);
  CHECK(entries(folder) == 1);
  check_same(example_report(), read_report(path));
  CHECK(write_in_child(path, [] {}) == 0);
  CHECK(read_report(path).title == "new");
  CHECK(entries(folder) == 1);
}

TEST_CASE("a process killed while writing leaves the old file or the new one") {
  const ScratchFolder folder;
  const std::string path = folder.file("report.h5");
  bool old_seen = false;
  for (int attempt = 0; attempt < 12; ++attempt) {
    write_report(path, large_report("old"));
    const pid_t child = fork();
    if (child == 0) {
      for (;;) write_report(path, large_report("new"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + 7 * attempt));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Report left = read_report(path);
    old_seen |= left.title == "old";
    CHECK((left.title == "old" || left.title == "new"));
    CHECK(left.cases() == 200000);
  }
  CHECK(old_seen);
}

TEST_CASE("a killed first write leaves no report") {
  const ScratchFolder folder;
  const std::string path = folder.file("report.h5");
  const pid_t child = fork();
  if (child == 0) {
    write_report(path, large_report("new"));
    for (;;) pause();
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK((!std::filesystem::exists(path) || read_report(path).title == "new"));
}

TEST_CASE("a link is followed, a link to nowhere refused") {
  const ScratchFolder folder;
  const std::string path = folder.file("report.h5"), link = folder.file("latest.h5");
  write_report(path, Report{});
  std::filesystem::create_symlink("report.h5", link);
  write_report(link, example_report());
  CHECK(std::filesystem::is_symlink(link));
  check_same(example_report(), read_report(path));
  std::filesystem::remove(path);
  CHECK_THROWS_WITH_AS(write_report(link, Report{}), doctest::Contains("leads nowhere"), ReportError);
}

TEST_CASE("any bytes can be written, none too") {
  const ScratchFolder folder;
  const std::byte byte{7};
  write_file_atomically(folder.file("one"), std::span(&byte, 1));
  CHECK(std::filesystem::file_size(folder.file("one")) == 1);
  write_file_atomically(folder.file("none"), {});
  CHECK(std::filesystem::file_size(folder.file("none")) == 0);
}
