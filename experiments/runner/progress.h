#pragma once
// Progress of a run: a bar with the time left on a terminal; elsewhere plain lines, if asked for.

#include <chrono>
#include <string>

namespace splash::experiments {

class Progress {
 public:
  // `total` cases are to be run. Draws on stderr only where that is a terminal; else, if verbose, writes a
  // line a case.
  Progress(int64_t total, bool verbose);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin(const std::string& what);  // the case that starts now
  void done(double seconds);            // it is finished
  void clear();                         // takes the bar away, so that a line can be written

 private:
  void draw();
  int64_t total_, done_ = 0;
  bool verbose_, terminal_, drawn_ = false;
  double seconds_ = 0;
  std::string what_;
};

std::string format_duration(double seconds);  // "0.3 s", "12 s", "3 min 20 s", "2 h 5 min"

}  // namespace splash::experiments
