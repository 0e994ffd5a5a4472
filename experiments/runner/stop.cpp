#include "experiments/runner/stop.h"

#include <csignal>
#include <cstdlib>
#include <unistd.h>

namespace splash::experiments {
namespace {

constexpr unsigned kGraceSeconds = 2;
volatile std::sig_atomic_t stop_requested = 0;
std::string farewell_text;  // written before the handlers are set, only read by them
struct sigaction old_interrupt, old_terminate, old_alarm;

void end_now() {
  // Only async-signal-safe calls here.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, farewell_text.data(), farewell_text.size());
  _exit(130);
}

void on_stop(int) {
  if (stop_requested) end_now();
  stop_requested = 1;
  alarm(kGraceSeconds);
}

void on_alarm(int) {
  end_now();
}

}  // namespace

StopGuard::StopGuard(const std::string& farewell) {
  farewell_text = "\n" + farewell + "\n";
  stop_requested = 0;
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_stop;
  sigaction(SIGINT, &action, &old_interrupt);
  sigaction(SIGTERM, &action, &old_terminate);
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, &old_alarm);
}

StopGuard::~StopGuard() {
  alarm(0);
  sigaction(SIGINT, &old_interrupt, nullptr);
  sigaction(SIGTERM, &old_terminate, nullptr);
  sigaction(SIGALRM, &old_alarm, nullptr);
}

bool StopGuard::requested() {
  return stop_requested != 0;
}

}  // namespace splash::experiments
