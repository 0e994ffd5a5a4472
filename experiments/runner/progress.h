#pragma once
// Shows a run's progress: on a terminal a bar with the time left, elsewhere plain lines if asked for.

#include <chrono>
#include <string>

namespace splash::experiments {

class Progress {
 public:
  // `total`: cases to run. Draws a bar if stderr is a terminal; otherwise, if verbose, writes one line per
  // case.
  Progress(int64_t total, bool verbose);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin(const std::string& what);  // the case that starts now
  void done(double seconds);            // it has finished
  void clear();                         // removes the bar, so that a line can be written

 private:
  void draw();
  int64_t total_, done_ = 0;
  bool verbose_, terminal_, drawn_ = false;
  double seconds_ = 0;
  std::string what_;
};

std::string format_duration(double seconds);  // "0.3 s", "12 s", "3 min 20 s", "2 h 5 min"

}  // namespace splash::experiments
