#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <Eigen/Core>
#include <fmt/format.h>
#include <hdf5_hl.h>

#include "core/checked.h"
#include "core/error.h"
#include "report/hdf5/internal.h"
#include "report/hdf5/object.h"

namespace splash::report::hdf5 {
namespace {

int class_of(const Handle& dataset) {
  const Handle type(H5Dget_type(dataset.id()));
  return H5Tget_class(type.id());
}

// Whether numbers of this type are IEEE's of 16 bits in this machine's order of bytes. HDF5 converts them to
// float one by one, some ten times as slowly as floats().
bool is_native_half(const Handle& type) {
  const Handle half(H5Tcopy(H5T_IEEE_F32LE));
  H5Tset_fields(half.id(), 15, 10, 5, 0, 10);  // sign, exponent and its width, mantissa and its width
  H5Tset_size(half.id(), 2);
  H5Tset_ebias(half.id(), 15);
  return std::endian::native == std::endian::little && H5Tequal(type.id(), half.id()) > 0;
}

// Allocates `width` values of T per element (the bytes of a text). contained.h has checked the extents
// against the file's size.
template <class T>
std::vector<T> allocate(const std::string& file, const std::string& path, const Extents& extents,
                        int64_t width = 1) {
  const int64_t count = element_count(extents);
  try {
    return std::vector<T>(static_cast<size_t>(checked_product({count, width}).value_or(-1)));
  } catch (const std::exception&) {  // bad_alloc or length_error
    throw ReportError(fmt::format("{}: {} claims {} elements, more than fit in memory", file, path, count));
  }
}

// Limits what HDF5 may allocate for variable-length texts to the size of the file. Many references to the
// same text, each read separately, would need more.
struct TextBudget {
  hsize_t left = 0;

  static void* take(size_t bytes, void* budget) {
    hsize_t& left = static_cast<TextBudget*>(budget)->left;
    if (bytes > left) return nullptr;
    left -= bytes;
    return std::malloc(bytes);
  }
  static void give(void* bytes, void*) { std::free(bytes); }
};

}  // namespace

Extents Dataset::extents() const {
  const Handle space(H5Dget_space(handle_.id()));
  const int rank = H5Sget_simple_extent_ndims(space.id());
  if (rank < 0) fail("has no readable extents");
  if (H5Sget_simple_extent_type(space.id()) == H5S_NULL) fail("holds no data");
  std::vector<hsize_t> extents(rank);
  H5Sget_simple_extent_dims(space.id(), extents.data(), nullptr);
  if (std::ranges::any_of(extents, [](hsize_t extent) { return extent > INT64_MAX; })) {
    fail("has an extent beyond 63 bits");
  }
  return Extents(extents.begin(), extents.end());
}

bool Dataset::is_text() const {
  return class_of(handle_) == H5T_STRING;
}
bool Dataset::is_integer() const {
  return class_of(handle_) == H5T_INTEGER;
}

// Gives a clear error instead of HDF5's "unable to convert between src and dest datatype".
void Dataset::require_class(int type_class, const char* expected) const {
  const int actual = class_of(handle_);
  const bool number = actual == H5T_FLOAT || actual == H5T_INTEGER;
  if (actual == type_class || (type_class == H5T_FLOAT && number)) return;
  fail(fmt::format("holds {}, where {} were expected",
                   number ? "numbers" : (actual == H5T_STRING ? "text" : "neither numbers nor text"),
                   expected));
}

template <class T>
std::vector<T> Dataset::read_whole(int64_t memory_type) const {
  std::vector<T> values = allocate<T>(file_, path_, extents());
  if (!values.empty() &&
      H5Dread(handle_.id(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    fail("cannot be read");
  }
  return values;
}

std::vector<double> Dataset::doubles() const {
  require_class(H5T_FLOAT, "numbers");
  return read_whole<double>(H5T_NATIVE_DOUBLE);
}

std::vector<int64_t> Dataset::integers() const {
  require_class(H5T_INTEGER, "integers");
  return read_whole<int64_t>(H5T_NATIVE_INT64);
}

std::vector<float> Dataset::floats(const Extents& leading) const {
  require_class(H5T_FLOAT, "numbers");
  const Handle type(H5Dget_type(handle_.id()));
  if (!is_native_half(type)) return read_part<float>(leading, H5T_NATIVE_FLOAT);
  const std::vector<uint16_t> halves = read_part<uint16_t>(leading, type.id());
  std::vector<float> values = allocate<float>(file_, path_, {static_cast<int64_t>(halves.size())});
  std::ranges::transform(halves, values.begin(), [](uint16_t bits) {
    return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits));
  });
  return values;
}

template <class T>
std::vector<T> Dataset::read_part(const Extents& leading, int64_t memory_type) const {
  const Extents whole = extents();
  if (leading.size() > whole.size()) {
    throw InvalidArgument(fmt::format("{}: {} has {} dimensions, {} indices were given", file_, path_,
                                      whole.size(), leading.size()));
  }
  if (leading.empty()) return read_whole<T>(memory_type);

  std::vector<hsize_t> start(whole.size(), 0), count(whole.begin(), whole.end());
  for (size_t axis = 0; axis < leading.size(); ++axis) {
    if (leading[axis] < 0 || leading[axis] >= whole[axis]) {
      throw InvalidArgument(
          fmt::format("{}: {} has {} entries along dimension {}, index {} is not among them", file_, path_,
                      whole[axis], axis, leading[axis]));
    }
    start[axis] = leading[axis];
    count[axis] = 1;
  }
  const Handle part(H5Dget_space(handle_.id()));
  const Handle memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr));
  std::vector<T> values = allocate<T>(file_, path_, Extents(count.begin(), count.end()));
  if (values.empty()) return values;
  if (H5Sselect_hyperslab(part.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) < 0 ||
      H5Dread(handle_.id(), memory_type, memory.id(), part.id(), H5P_DEFAULT, values.data()) < 0) {
    fail("cannot be read");
  }
  return values;
}

std::vector<std::string> Dataset::texts() const {
  require_class(H5T_STRING, "texts");
  const Handle type(H5Dget_type(handle_.id()));
  if (H5Tis_variable_str(type.id()) > 0) return variable_texts(type);
  const size_t length = H5Tget_size(type.id());
  std::vector<std::string> values;
  std::vector<char> bytes = allocate<char>(file_, path_, extents(), static_cast<int64_t>(length));
  if (bytes.empty()) return values;
  if (H5Dread(handle_.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0)
    fail("cannot be read");
  for (size_t at = 0; at < bytes.size(); at += length) {
    values.emplace_back(bytes.data() + at, strnlen(bytes.data() + at, length));
  }
  return values;
}

std::vector<std::string> Dataset::variable_texts(const Handle& type) const {
  std::vector<char*> pointers = allocate<char*>(file_, path_, extents());
  if (pointers.empty()) return {};
  TextBudget budget;
  const Handle file(H5Iget_file_id(handle_.id())), space(H5Dget_space(handle_.id()));
  H5Fget_filesize(file.id(), &budget.left);
  const Handle transfer(H5Pcreate(H5P_DATASET_XFER));
  H5Pset_vlen_mem_manager(transfer.id(), TextBudget::take, &budget, TextBudget::give, &budget);
  const bool read = H5Dread(handle_.id(), type.id(), H5S_ALL, H5S_ALL, transfer.id(), pointers.data()) >= 0;
  std::vector<std::string> values;
  if (read) values.reserve(pointers.size());
  for (const char* pointer : pointers) {
    if (read) values.emplace_back(pointer ? pointer : "");
  }
  H5Dvlen_reclaim(type.id(), space.id(), transfer.id(), pointers.data());
  if (!read) fail("cannot be read");
  return values;
}

std::string Dataset::text() const {
  const std::vector<std::string> values = texts();
  if (values.size() != 1) fail(fmt::format("holds {} texts, where one was expected", values.size()));
  return values.front();
}

int64_t Dataset::integer() const {
  const std::vector<int64_t> values = integers();
  if (values.size() != 1) fail(fmt::format("holds {} integers, where one was expected", values.size()));
  return values.front();
}

void Dataset::make_scale(const std::string& dimension) {
  if (H5DSset_scale(handle_.id(), dimension.c_str()) < 0) fail("cannot be made a dimension scale");
}

void Dataset::attach_scale(int axis, const Dataset& scale) {
  if (H5DSattach_scale(handle_.id(), scale.handle_.id(), static_cast<unsigned>(axis)) < 0) {
    fail(fmt::format("does not take the dimension scale {}", scale.path()));
  }
}

bool Dataset::is_scale() const {
  return H5DSis_scale(handle_.id()) > 0;
}

std::vector<std::string> Dataset::dimension_names() const {
  const auto keep_name = [](hid_t, unsigned, hid_t scale, void* text) -> herr_t {
    std::string& name = *static_cast<std::string*>(text);
    const ssize_t length = H5DSget_scale_name(scale, nullptr, 0);
    if (length <= 0) return 1;
    name.resize(length + 1);
    H5DSget_scale_name(scale, name.data(), name.size());
    name.resize(length);
    return 1;  // the first scale of a dimension gives it its name
  };
  std::vector<std::string> names(extents().size());
  for (size_t axis = 0; axis < names.size(); ++axis) {
    H5DSiterate_scales(handle_.id(), static_cast<unsigned>(axis), nullptr, keep_name, &names[axis]);
  }
  return names;
}

}  // namespace splash::report::hdf5
