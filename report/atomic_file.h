#pragma once
// Writes files such that they are either whole or untouched.

#include <cstddef>
#include <span>
#include <string>

namespace splash::report {

// Writes `bytes` to a new file ".<name>.tmp.<pid>.<n>" in the folder of `path`, syncs it, renames it to
// `path` and syncs the folder. A symbolic link is followed. Throws ReportError if the folder does not exist
// or cannot be written, if the disk is full, or if `path` is something other than a file. Then `path` is
// unchanged and the temporary file is gone. A process killed in between may leave the temporary file, but
// never half of `path`.
void write_file_atomically(const std::string& path, std::span<const std::byte> bytes);

// To be called before the work whose result is to be written: makes the folders of `path`, and throws
// ReportError if write_file_atomically() would refuse `path`.
void prepare_place(const std::string& path);

}  // namespace splash::report
