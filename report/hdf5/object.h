#pragma once
// Groups, datasets and attributes of an HDF5 file. All errors are ReportErrors with one sentence that names
// the file, the object and the reason. HDF5 as Debian builds it is not thread-safe: use it from one thread at
// a time.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "report/hdf5/handle.h"

namespace splash::report::hdf5 {

using Extents = std::vector<int64_t>;
// 1 for a scalar. Throws InvalidArgument if an extent is negative or the product exceeds 63 bits.
int64_t element_count(const Extents& extents);

// What groups and datasets have in common: attributes.
class Object {
 public:
  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }  // from the root, for example "/results/time"

  void set_text(const std::string& name, const std::string& value);
  void set_integer(const std::string& name, int64_t value);

  bool has_attribute(const std::string& name) const;
  std::string text_attribute(const std::string& name) const;
  std::string text_attribute(const std::string& name, const std::string& if_missing) const;
  int64_t integer_attribute(const std::string& name) const;

 protected:
  Object(Handle handle, std::string file, std::string path);
  [[noreturn]] void fail(const std::string& what) const;
  Handle open_attribute(const std::string& name) const;

  Handle handle_;
  std::string file_, path_;
};

class Dataset : public Object {
 public:
  Extents extents() const;
  bool is_text() const;
  bool is_integer() const;

  // Reads the whole dataset, row-major, converted from any width in the file (16-bit floats too).
  std::vector<double> doubles() const;
  std::vector<int64_t> integers() const;
  std::vector<float> floats() const { return floats({}); }
  std::vector<std::string> texts() const;
  std::string text() const;  // of a scalar dataset
  int64_t integer() const;   // of a scalar dataset
  // Reads only the part with the first indices fixed: floats({3, 7}) of [layer, head, token, head_dim] is one
  // head.
  std::vector<float> floats(const Extents& leading) const;

  // Dimension scales as in netCDF-4: a scale is the coordinate of the dimension that has its name.
  void make_scale(const std::string& dimension);
  void attach_scale(int axis, const Dataset& scale);
  bool is_scale() const;
  std::vector<std::string> dimension_names() const;  // outermost first; "" if no scale is attached

 private:
  friend class Group;
  using Object::Object;
  void require_class(int type_class, const char* expected) const;
  std::vector<std::string> variable_texts(const Handle& type) const;
  template <class T>
  std::vector<T> read_whole(int64_t memory_type) const;
  template <class T>
  std::vector<T> read_part(const Extents& leading, int64_t memory_type) const;
};

class Group : public Object {
 public:
  bool has(const std::string& name) const;
  bool is_group(const std::string& name) const;    // false if there is nothing of that name
  std::vector<std::string> names() const;          // in order of creation if the file keeps it, else by name
  Group group(const std::string& name) const;      // `name` may be a path, "gpl-3/q"
  Dataset dataset(const std::string& name) const;  // likewise

  // Created objects have no time stamps and remember their order. Datasets above a few kilobytes are chunked,
  // shuffled and deflated. Throws InvalidArgument for a name that HDF5 does not take.
  Group create_group(const std::string& name);
  Dataset create_doubles(const std::string& name, const Extents& extents, std::span<const double> values);
  Dataset create_integers(const std::string& name, const Extents& extents, std::span<const int64_t> values);
  Dataset create_texts(const std::string& name, const Extents& extents, std::span<const std::string> values);
  Dataset create_text(const std::string& name, const std::string& value);  // scalar
  Dataset create_integer(const std::string& name, int64_t value);          // scalar

 private:
  friend class File;
  using Object::Object;
  std::string child_path(const std::string& name) const;
  Dataset create(const std::string& name, const Extents& extents, int64_t type, const void* values,
                 size_t count, size_t element_bytes);
};

}  // namespace splash::report::hdf5
