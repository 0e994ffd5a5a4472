#include "report/hdf5/file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "report/hdf5/apart.h"
#include "report/hdf5/contained.h"
#include "report/hdf5/internal.h"

namespace splash::report::hdf5 {
namespace {

// Gives each reason its own message. HDF5 says "unable to open file" for all of these.
void check_openable(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    throw ReportError(errno == ENOENT ? fmt::format("{}: no such file", path)
                                      : fmt::format("{}: cannot be opened ({})", path, std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) throw ReportError(fmt::format("{}: is a folder, not an HDF5 file", path));
  if (!S_ISREG(status.st_mode)) throw ReportError(fmt::format("{}: is not a regular file", path));
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw ReportError(fmt::format("{}: cannot be read ({})", path, std::strerror(errno)));
  ::close(descriptor);
  if (status.st_size == 0) throw ReportError(fmt::format("{}: is empty, not an HDF5 file", path));
}

// Reports are replaced by renaming and never changed in place, so readers need no lock. Some file systems
// have no locks.
Handle access_without_locks() {
  Handle properties(H5Pcreate(H5P_FILE_ACCESS));
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  H5Pset_file_locking(properties.id(), false, true);
#endif
  return properties;
}

}  // namespace

File::File(Handle handle, std::string name) : handle_(std::move(handle)), name_(std::move(name)) {}

File File::open(const std::string& path) {
  silence_hdf5();
  check_openable(path);
  if (H5Fis_hdf5(path.c_str()) <= 0) throw ReportError(fmt::format("{}: is not an HDF5 file", path));
  const Handle access = access_without_locks();
  Handle handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()));
  if (!handle.valid()) {
    const std::string complaint = last_complaint();
    throw ReportError(complaint.find("truncated") != std::string::npos
                          ? fmt::format("{}: is truncated, its end is missing{}", path, complaint)
                          : fmt::format("{}: is damaged and cannot be opened{}", path, complaint));
  }
  require_contained(handle.id(), path);
  return File(std::move(handle), path);
}

File File::in_memory(const std::string& name) {
  silence_hdf5();
  constexpr size_t kGrowBy = 1 << 20;
  const Handle access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_fapl_core(access.id(), kGrowBy, /*backing_store=*/false);
  const Handle creation(H5Pcreate(H5P_FILE_CREATE));
  H5Pset_obj_track_times(creation.id(), false);
  H5Pset_link_creation_order(creation.id(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  // HDF5 identifies open files by name, and two with the same name may not be open at once.
  static int64_t serial = 0;
  const std::string unique = fmt::format("splash-in-memory-{}", ++serial);
  Handle handle(H5Fcreate(unique.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()));
  if (!handle.valid()) {
    throw ReportError(fmt::format("{}: HDF5 cannot build a file in memory{}", name, last_complaint()));
  }
  return File(std::move(handle), name);
}

Group File::root() const {
  Handle handle(H5Gopen2(handle_.id(), "/", H5P_DEFAULT));
  if (!handle.valid()) throw ReportError(fmt::format("{}: has no root group{}", name_, last_complaint()));
  return Group(std::move(handle), name_, "/");
}

int64_t File::bytes_past_end() const {
  haddr_t end = 0;
  hsize_t size = 0;
  if (H5Fget_eoa(handle_.id(), &end) < 0 || H5Fget_filesize(handle_.id(), &size) < 0) {
    throw ReportError(fmt::format("{}: has no readable size{}", name_, last_complaint()));
  }
  return static_cast<int64_t>(size) - static_cast<int64_t>(end);
}

std::vector<std::byte> File::image() const {
  ssize_t size = -1;
  if (H5Fflush(handle_.id(), H5F_SCOPE_LOCAL) >= 0) size = H5Fget_file_image(handle_.id(), nullptr, 0);
  std::vector<std::byte> bytes(size > 0 ? static_cast<size_t>(size) : 0);
  if (size <= 0 || H5Fget_file_image(handle_.id(), bytes.data(), bytes.size()) < 0) {
    throw ReportError(fmt::format("{}: HDF5 cannot assemble the file{}", name_, last_complaint()));
  }
  return bytes;
}

namespace {

Dataset dataset_of(const std::string& file, const std::string& name, size_t dimensions) {
  Dataset dataset = File::open(file).root().dataset(name);
  const size_t found = dataset.extents().size();
  if (found == dimensions || dimensions == kAnyDimensions) return dataset;
  throw ReportError(fmt::format("{}: {} has {} dimensions, where {} were expected", file, dataset.path(),
                                found, dimensions));
}

}  // namespace

FloatArray read_floats(const std::string& file, const std::string& dataset, const Extents& leading,
                       size_t dimensions) {
  return read_apart_first(file, [&] {
    const Dataset source = dataset_of(file, dataset, dimensions);
    FloatArray array{source.extents(), source.floats(leading)};
    array.extents.erase(array.extents.begin(), array.extents.begin() + static_cast<int64_t>(leading.size()));
    return array;
  });
}

Extents read_extents(const std::string& file, const std::string& dataset, size_t dimensions) {
  return read_apart_first(file, [&] { return dataset_of(file, dataset, dimensions).extents(); });
}

std::vector<std::string> read_texts(const std::string& file, const std::string& dataset) {
  return read_apart_first(file, [&] { return File::open(file).root().dataset(dataset).texts(); });
}

bool contains(const std::string& file, const std::string& path) {
  return read_apart_first(file, [&] { return File::open(file).root().has(path); });
}

}  // namespace splash::report::hdf5
