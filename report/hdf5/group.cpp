#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text.h"
#include "report/hdf5/internal.h"
#include "report/hdf5/object.h"

namespace splash::report::hdf5 {
namespace {

constexpr size_t kCompressFrom = 4096;      // bytes; for less, a chunk index costs more than deflate saves
constexpr size_t kChunkBytes = 512 * 1024;  // half of HDF5's default chunk cache
constexpr unsigned kDeflateLevel = 4;

// Chunks consist of whole inner rows, as many as fit.
std::vector<hsize_t> chunk_extents(const Extents& extents, size_t element_bytes) {
  std::vector<hsize_t> chunk(extents.begin(), extents.end());
  size_t bytes = element_bytes * static_cast<size_t>(element_count(extents));
  for (hsize_t& extent : chunk) {
    if (bytes <= kChunkBytes) break;
    const size_t inner = bytes / extent;
    extent = std::max<hsize_t>(1, kChunkBytes / inner);
    bytes = inner * extent;
  }
  return chunk;
}

// Text is not filtered: a filter would see only references to the strings, and netCDF's tools do not copy
// filtered text.
Handle creation_properties(const Extents& extents, H5T_class_t kind, size_t element_bytes) {
  Handle properties(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_obj_track_times(properties.id(), false);  // so that equal reports give equal files
  const size_t bytes = element_bytes * static_cast<size_t>(element_count(extents));
  if (kind != H5T_STRING && !extents.empty() && bytes > kCompressFrom) {
    const std::vector<hsize_t> chunk = chunk_extents(extents, element_bytes);
    H5Pset_chunk(properties.id(), static_cast<int>(chunk.size()), chunk.data());
    if (H5Zfilter_avail(H5Z_FILTER_DEFLATE) > 0) {
      H5Pset_shuffle(properties.id());
      H5Pset_deflate(properties.id(), kDeflateLevel);
    }
  }
  return properties;
}

Handle link_properties() {
  Handle properties(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_char_encoding(properties.id(), H5T_CSET_UTF8);
  return properties;
}

void check_name(const std::string& name) {
  const bool odd =
      name.empty() || name == "." || name.find('/') != std::string::npos || to_utf8(name) != name;
  if (odd) {
    throw InvalidArgument(fmt::format(
        R"("{}" cannot name an HDF5 object: UTF-8 text without '/' and not "." can)", to_utf8(name)));
  }
}

// Whether every link of a path exists and leads somewhere. H5Oexists_by_name alone fails with an error if
// not.
bool resolves(hid_t from, const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string prefix = path.substr(0, end);
    if (prefix != "/" && (prefix.empty() || H5Lexists(from, prefix.c_str(), H5P_DEFAULT) <= 0 ||
                          H5Oexists_by_name(from, prefix.c_str(), H5P_DEFAULT) <= 0)) {
      return false;
    }
    if (end == std::string::npos) return true;
  }
}

}  // namespace

std::string Group::child_path(const std::string& name) const {
  if (name.starts_with('/')) return name;
  return path_ == "/" ? "/" + name : path_ + "/" + name;
}

bool Group::has(const std::string& name) const {
  return resolves(handle_.id(), name);
}

bool Group::is_group(const std::string& name) const {
  if (!has(name)) return false;
  const Handle object(H5Oopen(handle_.id(), name.c_str(), H5P_DEFAULT));
  return object.valid() && H5Iget_type(object.id()) == H5I_GROUP;
}

std::vector<std::string> Group::names() const {
  const Handle properties(H5Gget_create_plist(handle_.id()));
  unsigned order = 0;
  H5Pget_link_creation_order(properties.id(), &order);
  const H5_index_t index = (order & H5P_CRT_ORDER_TRACKED) ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
  std::vector<std::string> names;
  const auto keep = [](hid_t, const char* name, const H5L_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  if (H5Literate(handle_.id(), index, H5_ITER_INC, nullptr, keep, &names) < 0) fail("cannot be listed");
  return names;
}

Group Group::group(const std::string& name) const {
  const std::string path = child_path(name);
  if (!has(name)) throw ReportError(fmt::format("{}: there is no group {}", file_, path));
  Handle handle(H5Gopen2(handle_.id(), name.c_str(), H5P_DEFAULT));
  if (!handle.valid()) {
    throw ReportError(fmt::format("{}: {} is not a readable group{}", file_, path, last_complaint()));
  }
  return Group(std::move(handle), file_, path);
}

Dataset Group::dataset(const std::string& name) const {
  const std::string path = child_path(name);
  if (!has(name)) throw ReportError(fmt::format("{}: there is no dataset {}", file_, path));
  Handle handle(H5Dopen2(handle_.id(), name.c_str(), H5P_DEFAULT));
  if (!handle.valid()) {
    throw ReportError(fmt::format("{}: {} is not a readable dataset{}", file_, path, last_complaint()));
  }
  return Dataset(std::move(handle), file_, path);
}

Group Group::create_group(const std::string& name) {
  check_name(name);
  const Handle properties(H5Pcreate(H5P_GROUP_CREATE));
  H5Pset_obj_track_times(properties.id(), false);
  H5Pset_link_creation_order(properties.id(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  const Handle link = link_properties();
  Handle handle(H5Gcreate2(handle_.id(), name.c_str(), link.id(), properties.id(), H5P_DEFAULT));
  if (!handle.valid()) {
    throw ReportError(fmt::format("{}: cannot create {}{}", file_, child_path(name), last_complaint()));
  }
  return Group(std::move(handle), file_, child_path(name));
}

Dataset Group::create(const std::string& name, const Extents& extents, int64_t type, const void* values,
                      size_t count, size_t element_bytes) {
  check_name(name);
  if (count != static_cast<size_t>(element_count(extents))) {
    throw InvalidArgument(fmt::format("{}: {} values were given for extents of {} elements", child_path(name),
                                      count, element_count(extents)));
  }
  const H5T_class_t kind = H5Tget_class(type);
  const hid_t memory_type = kind == H5T_INTEGER ? H5T_NATIVE_INT64
                            : kind == H5T_FLOAT ? H5T_NATIVE_DOUBLE
                                                : type;
  const std::vector<hsize_t> shape(extents.begin(), extents.end());
  const Handle space(shape.empty() ? H5Screate(H5S_SCALAR)
                                   : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr));
  const Handle link = link_properties();
  const Handle properties = creation_properties(extents, kind, element_bytes);
  Handle handle(
      H5Dcreate2(handle_.id(), name.c_str(), type, space.id(), link.id(), properties.id(), H5P_DEFAULT));
  if (!handle.valid() ||
      (count > 0 && H5Dwrite(handle.id(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0)) {
    throw ReportError(fmt::format("{}: cannot write {}{}", file_, child_path(name), last_complaint()));
  }
  return Dataset(std::move(handle), file_, child_path(name));
}

Dataset Group::create_doubles(const std::string& name, const Extents& extents,
                              std::span<const double> values) {
  return create(name, extents, H5T_IEEE_F64LE, values.data(), values.size(), sizeof(double));
}

Dataset Group::create_integers(const std::string& name, const Extents& extents,
                               std::span<const int64_t> values) {
  return create(name, extents, H5T_STD_I64LE, values.data(), values.size(), sizeof(int64_t));
}

Dataset Group::create_texts(const std::string& name, const Extents& extents,
                            std::span<const std::string> values) {
  std::vector<std::string> clean;
  clean.reserve(values.size());
  for (const std::string& value : values) clean.push_back(to_utf8(value));
  std::vector<const char*> pointers;
  pointers.reserve(clean.size());
  for (const std::string& value : clean) pointers.push_back(value.c_str());
  const Handle type = text_type();
  return create(name, extents, type.id(), pointers.data(), pointers.size(), 16);  // a heap reference a text
}

Dataset Group::create_text(const std::string& name, const std::string& value) {
  return create_texts(name, {}, std::span(&value, 1));
}

Dataset Group::create_integer(const std::string& name, int64_t value) {
  return create_integers(name, {}, std::span(&value, 1));
}

}  // namespace splash::report::hdf5
