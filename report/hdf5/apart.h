#pragma once
// Reads a file in a child process first.
//
// HDF5 1.10 trusts what it reads: it crashes or hangs on some damaged or malicious files. So a child process
// with limited memory and time reads the whole file first. Only if it succeeds does this process read it
// (docs/decisions/0029-files-are-read-apart-first.md).

#include <functional>
#include <string>

namespace splash::report::hdf5 {

// Calls `read` in a child process; its changes to memory are lost. Throws what the child threw (ReportError,
// InvalidArgument). Also throws ReportError if the child crashed, or took more memory or time than a file of
// that size may.
void try_apart(const std::string& path, const std::function<void()>& read);

// Returns the result of `read`, which must have been tried apart.
template <class Read>
auto read_apart_first(const std::string& path, const Read& read) {
  try_apart(path, [&] { static_cast<void>(read()); });
  return read();
}

}  // namespace splash::report::hdf5
