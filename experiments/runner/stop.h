#pragma once
// Handles Ctrl-C and SIGTERM while cases run: the run ends soon and keeps every completed case.

#include <string>

namespace splash::experiments {

// While one exists, the first SIGINT or SIGTERM makes requested() true and gives the running case two
// seconds. After that, or at a second signal, the farewell goes to stderr and the process ends with exit code
// 130. That is safe at any moment, because finished cases are in the journal.
class StopGuard {
 public:
  explicit StopGuard(const std::string& farewell);
  ~StopGuard();
  StopGuard(const StopGuard&) = delete;
  StopGuard& operator=(const StopGuard&) = delete;

  static bool requested();
};

}  // namespace splash::experiments
