#include "report/hdf5/object.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/text.h"
#include "report/hdf5/internal.h"

namespace splash::report::hdf5 {

static_assert(sizeof(hid_t) == sizeof(int64_t));

Handle::~Handle() {
  if (valid()) H5Idec_ref(id_);  // the last reference closes an object of any kind
}

void silence_hdf5() {
  static const herr_t once = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  (void)once;
}

std::string last_complaint() {
  std::string innermost;
  const auto keep_first = [](unsigned depth, const H5E_error2_t* error, void* text) -> herr_t {
    if (depth == 0 && error->desc) *static_cast<std::string*>(text) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &innermost);
  return innermost.empty() ? "" : fmt::format(" (HDF5: {})", innermost);
}

Handle text_type() {
  Handle type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.id(), H5T_VARIABLE);
  H5Tset_cset(type.id(), H5T_CSET_UTF8);
  return type;
}

int64_t element_count(const Extents& extents) {
  if (const auto count = checked_product(extents)) return *count;
  throw InvalidArgument(
      fmt::format("extents [{}] are of no array: each must be 0 or more, their product less than 2^63",
                  fmt::join(extents, ", ")));
}

Object::Object(Handle handle, std::string file, std::string path)
    : handle_(std::move(handle)), file_(std::move(file)), path_(std::move(path)) {}

void Object::fail(const std::string& what) const {
  throw ReportError(fmt::format("{}: {} {}{}", file_, path_, what, last_complaint()));
}

void Object::set_text(const std::string& name, const std::string& value) {
  const Handle type = text_type();
  const Handle space(H5Screate(H5S_SCALAR));
  const Handle attribute(
      H5Acreate2(handle_.id(), name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT));
  const std::string clean = to_utf8(value);
  const char* pointer = clean.c_str();
  if (!attribute.valid() || H5Awrite(attribute.id(), type.id(), &pointer) < 0) {
    fail(fmt::format("does not take the attribute {}", name));
  }
}

void Object::set_integer(const std::string& name, int64_t value) {
  const Handle space(H5Screate(H5S_SCALAR));
  const Handle attribute(
      H5Acreate2(handle_.id(), name.c_str(), H5T_STD_I64LE, space.id(), H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute.valid() || H5Awrite(attribute.id(), H5T_NATIVE_INT64, &value) < 0) {
    fail(fmt::format("does not take the attribute {}", name));
  }
}

bool Object::has_attribute(const std::string& name) const {
  return H5Aexists(handle_.id(), name.c_str()) > 0;
}

// Opens an attribute that holds one value. The callers' buffers have no room for more.
Handle Object::open_attribute(const std::string& name) const {
  if (!has_attribute(name)) fail(fmt::format("has no attribute {}", name));
  Handle attribute(H5Aopen(handle_.id(), name.c_str(), H5P_DEFAULT));
  if (!attribute.valid()) fail(fmt::format("has an attribute {} that cannot be opened", name));
  const Handle space(H5Aget_space(attribute.id()));
  if (H5Sget_simple_extent_npoints(space.id()) != 1) {
    fail(fmt::format("has an attribute {} that is not a single value", name));
  }
  return attribute;
}

std::string Object::text_attribute(const std::string& name) const {
  const Handle attribute = open_attribute(name);
  const Handle type(H5Aget_type(attribute.id()));
  if (H5Tget_class(type.id()) != H5T_STRING) fail(fmt::format("has an attribute {} that is not text", name));
  if (H5Tis_variable_str(type.id()) > 0) {
    char* pointer = nullptr;
    if (H5Aread(attribute.id(), type.id(), &pointer) < 0) {
      fail(fmt::format("has an attribute {} that cannot be read", name));
    }
    std::string value = pointer ? pointer : "";
    H5free_memory(pointer);
    return value;
  }
  const hsize_t stored =
      H5Aget_storage_size(attribute.id());  // of the same type, so no more is read than is stored
  std::string value(static_cast<size_t>(stored), '\0');
  if (stored != H5Tget_size(type.id()) || H5Aread(attribute.id(), type.id(), value.data()) < 0) {
    fail(fmt::format("has an attribute {} that cannot be read", name));
  }
  value.resize(std::min(value.size(), value.find('\0')));  // removes the padding
  return value;
}

std::string Object::text_attribute(const std::string& name, const std::string& if_missing) const {
  return has_attribute(name) ? text_attribute(name) : if_missing;
}

int64_t Object::integer_attribute(const std::string& name) const {
  const Handle attribute = open_attribute(name);
  int64_t value = 0;
  if (H5Aread(attribute.id(), H5T_NATIVE_INT64, &value) < 0) {
    fail(fmt::format("has an attribute {} that is not an integer", name));
  }
  return value;
}

}  // namespace splash::report::hdf5
