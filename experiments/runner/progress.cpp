#include "experiments/runner/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "experiments/runner/narrate.h"

namespace splash::experiments {
namespace {

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

}  // namespace

std::string format_duration(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

Progress::Progress(int64_t total, bool verbose)
    : total_(total), verbose_(verbose), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  clear();
}

void Progress::begin(const std::string& what) {
  what_ = one_line(what);
  if (terminal_) draw();
}

void Progress::done(double seconds) {
  ++done_;
  seconds_ += seconds;
  if (verbose_) {
    clear();
    write_stderr(fmt::format("{}/{} {} ({})\n", done_, total_, what_, format_duration(seconds)));
  }
  if (terminal_) draw();
}

void Progress::draw() {
  constexpr int64_t kBar = 24;
  const int64_t filled = total_ > 0 ? kBar * done_ / total_ : kBar;
  std::string bar;
  for (int64_t i = 0; i < kBar; ++i) bar += i < filled ? '#' : '.';
  std::string line = fmt::format("[{}] {}/{}", bar, done_, total_);
  if (done_ > 0) {
    const double left = seconds_ / static_cast<double>(done_) * static_cast<double>(total_ - done_);
    line += fmt::format(", {} left", format_duration(left));
  }
  line += "  " + what_;
  line.resize(std::min(line.size(), terminal_width() - 1));
  write_stderr("\r\033[K" + line);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  write_stderr("\r\033[K");
  drawn_ = false;
}

}  // namespace splash::experiments
