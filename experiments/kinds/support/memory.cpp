#include "experiments/kinds/support/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <malloc.h>
#include <string>

namespace splash::experiments {
namespace {

// A field of /proc/self/status such as VmRSS, in bytes; -1 if it is missing.
double status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string name;
  while (status >> name) {
    double kib = 0;
    if (name == field + ":" && status >> kib) return 1024 * kib;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return -1;
}

}  // namespace

double peak_memory_of(const std::function<void()>& call) {
#if defined(__GLIBC__)
  malloc_trim(0);  // memory that earlier calls left on the heap would hide this call's
#endif
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;  // restarts VmHWM, the peak, from the present size
  const bool counted = reset.good();
  const double before = status_bytes("VmRSS");
  call();
  const double peak = status_bytes("VmHWM");
  if (!counted || before < 0 || peak < 0) return std::numeric_limits<double>::quiet_NaN();
  return std::max(0.0, peak - before);
}

}  // namespace splash::experiments
