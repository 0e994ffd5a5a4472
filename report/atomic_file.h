#pragma once
// Files that are either whole or untouched.

#include <cstddef>
#include <span>
#include <string>

namespace splash::report {

// Writes `bytes` to ".<name>.tmp.<pid>.<n>", a new file, in the folder of `path`, syncs, renames it to `path`
// and syncs the folder. A symbolic link is followed. Throws ReportError (no such folder, not writable, disk
// full, `path` is something other than a file); then `path` is what it was and the temporary file is gone. A
// process killed in between may leave the temporary file, never a half `path`.
void write_file_atomically(const std::string& path, std::span<const std::byte> bytes);

// Before the work whose result is to be written: makes the folders of `path`, and throws ReportError where
// write_file_atomically() would refuse the place.
void prepare_place(const std::string& path);

}  // namespace splash::report
