#pragma once
// What the fuzz targets share.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace splash::fuzz {

// A file of this process that holds each input in turn; it has no name and is gone with the process.
class InputFile {
 public:
  InputFile() {
    std::string name = "/tmp/splash-fuzz-XXXXXX";
    file_ = mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0) std::abort();
    unlink(name.c_str());
    path_ = "/proc/self/fd/" + std::to_string(file_);
  }
  const std::string& hold(const uint8_t* data, size_t size) {
    if (ftruncate(file_, 0) != 0 || pwrite(file_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    return path_;
  }

 private:
  int file_ = -1;
  std::string path_;
};

// Calls `read`; one of these errors is an answer, another exception a finding.
template <class... Answers, class Read>
void expect(const Read& read) {
  try {
    read();
  } catch (const std::exception& error) {
    if (!(... || (dynamic_cast<const Answers*>(&error) != nullptr))) throw;
    if (std::string(error.what()).empty()) std::abort();
  }
}

}  // namespace splash::fuzz

// HDF5 is not built with sanitizers. Where it crashes in the child that reads first (report/hdf5/apart.h),
// that is a signal and an answer; what a sanitizer finds in our own code ends the child with this code, which
// is a finding.
extern "C" inline const char* __asan_default_options() {
  return "exitcode=86:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_abort=0:replace_str=0:replace_"
         "intrin=0:"
         "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=3072";
}
