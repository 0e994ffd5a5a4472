#pragma once
// HDF5 files: read from disk, built in memory.
//
// A new file is built in memory and handed over as bytes; report/atomic_file.h writes them to disk. So HDF5
// never meets a full disk, where its error path (a dirty cache that it can neither flush nor close) kills the
// process.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "report/hdf5/object.h"

namespace splash::report::hdf5 {

class File {
 public:
  // For reading, in this process. Throws ReportError: no such file, not readable, not HDF5, truncated, not
  // contained (contained.h); says which. HDF5 may crash on what others made: see apart.h.
  static File open(const std::string& path);
  // A new, empty file in memory; `name` is only for messages.
  static File in_memory(const std::string& name);

  Group root() const;
  // How much longer an opened file is than its HDF5 content, which ends where HDF5 would append.
  int64_t bytes_past_end() const;
  // The file as it would stand on disk.
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

// These read in a process of their own first (apart.h), and throw ReportError where the dataset has another
// number of dimensions than the caller counts on.
// With `leading` = {3, 7} only layer 3, head 7 is read, and the extents are those of the rest.
FloatArray read_floats(const std::string& file, const std::string& dataset, const Extents& leading = {},
                       size_t dimensions = kAnyDimensions);
Extents read_extents(const std::string& file, const std::string& dataset, size_t dimensions = kAnyDimensions);
std::vector<std::string> read_texts(const std::string& file, const std::string& dataset);
// Names of the groups and datasets in a group.
std::vector<std::string> read_names(const std::string& file, const std::string& group = "/");
// False where the file holds no such object; throws where the file itself cannot be opened.
bool contains(const std::string& file, const std::string& path);

}  // namespace splash::report::hdf5
