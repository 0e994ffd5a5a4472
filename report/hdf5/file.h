#pragma once
// HDF5 files: read from disk, or built in memory.
//
// A new file is built in memory and returned as bytes, which report/atomic_file.h writes to disk. So HDF5
// never meets a full disk. Its error path for that (a dirty cache that it can neither flush nor close) kills
// the process.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "report/hdf5/object.h"

namespace splash::report::hdf5 {

class File {
 public:
  // Opens a file for reading, in this process. Throws ReportError that says whether the file is missing, not
  // readable, not HDF5, truncated or not contained (contained.h). HDF5 may crash on other people's files: see
  // apart.h.
  static File open(const std::string& path);
  // A new, empty file in memory; `name` only appears in messages.
  static File in_memory(const std::string& name);

  Group root() const;
  // Bytes by which an opened file is longer than its HDF5 content. The content ends where HDF5 would append.
  int64_t bytes_past_end() const;
  // The file's bytes, as they would be on disk.
  std::vector<std::byte> image() const;

 private:
  File(Handle handle, std::string name);
  Handle handle_;
  std::string name_;
};

// One dataset of a file, for example "gpl-3/q" of data/captures/minilm.h5: float16 [layer, head, token,
// head_dim].
struct FloatArray {
  Extents extents;
  std::vector<float> values;  // row-major
};

constexpr size_t kAnyDimensions = SIZE_MAX;

// These functions read the file in a process of its own first (apart.h). With `leading` = {3, 7} only layer
// 3, head 7 is read, and the extents are those of the remaining dimensions. Throws ReportError, also if the
// dataset has another number of dimensions than the caller expects.
FloatArray read_floats(const std::string& file, const std::string& dataset, const Extents& leading = {},
                       size_t dimensions = kAnyDimensions);
Extents read_extents(const std::string& file, const std::string& dataset, size_t dimensions = kAnyDimensions);
std::vector<std::string> read_texts(const std::string& file, const std::string& dataset);
// False if the file holds no such object; throws if the file itself cannot be opened.
bool contains(const std::string& file, const std::string& path);

}  // namespace splash::report::hdf5
