#include "report/hdf5/contained.h"

#include <algorithm>
#include <exception>
#include <vector>

#include <fmt/format.h>

#include "core/checked.h"
#include "core/error.h"
#include "report/hdf5/internal.h"

namespace splash::report::hdf5 {
namespace {

constexpr int64_t kDeflateAtMost = 1032;          // the format's limit: bytes that one stored byte may become
constexpr int64_t kUnwritten = int64_t{1} << 20;  // bytes that a dataset may claim without storing them

struct Walk {
  std::string name;
  hid_t file = -1;
  int64_t file_bytes = 0;
  int64_t claimed = 0;  // bytes over all links; two links to a dataset count twice, as each name is read
  std::exception_ptr thrown{};

  [[noreturn]] void fail(const std::string& path, const std::string& what) const {
    throw ReportError(fmt::format("{}: /{} {}", name, path, what));
  }

  [[noreturn]] void fail_elsewhere(const std::string& path, const std::string& what) const {
    fail(path, what + "; only a file that holds all of its data itself is read");
  }

  void check_link(const std::string& path, H5L_type_t type) const {
    if (type == H5L_TYPE_HARD) return;
    fail_elsewhere(path, type == H5L_TYPE_EXTERNAL ? "is a link to another file"
                         : type == H5L_TYPE_SOFT   ? "is a soft link"
                                                   : "is a link of an unknown kind");
  }

  // Refuses unknown filters. Returns whether the dataset is deflated.
  bool check_filters(const std::string& path, hid_t creation) const {
    bool deflated = false;
    const int count = H5Pget_nfilters(creation);
    if (count < 0) fail(path, "has no readable filters");
    for (int i = 0; i < count; ++i) {
      unsigned flags = 0, settings = 0;
      size_t values = 0;
      const H5Z_filter_t filter =
          H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr, &settings);
      deflated = deflated || filter == H5Z_FILTER_DEFLATE;
      if (filter == H5Z_FILTER_DEFLATE || filter == H5Z_FILTER_SHUFFLE || filter == H5Z_FILTER_FLETCHER32)
        continue;
      fail(path,
           fmt::format("is stored with the filter {}; allowed: deflate (1), shuffle (2), fletcher32 (3)",
                       filter));
    }
    return deflated;
  }

  void check_dataset(const std::string& path, hid_t dataset) {
    const Handle creation(H5Dget_create_plist(dataset));
    if (!creation.valid()) fail(path, "is not a readable dataset");
    if (H5Pget_layout(creation.id()) == H5D_VIRTUAL)
      fail_elsewhere(path, "is made of other datasets (virtual)");
    if (H5Pget_external_count(creation.id()) != 0) fail_elsewhere(path, "keeps its data in other files");
    const bool deflated = check_filters(path, creation.id());

    const Handle space(H5Dget_space(dataset)), type(H5Dget_type(dataset));
    const int64_t elements = H5Sget_simple_extent_npoints(space.id());
    const auto width = static_cast<int64_t>(std::max<size_t>(H5Tget_size(type.id()), sizeof(double)));
    const auto bytes = checked_product({elements, width});
    const auto stored = static_cast<int64_t>(
        std::min<hsize_t>(H5Dget_storage_size(dataset), static_cast<hsize_t>(file_bytes)));
    const int64_t widened = deflated ? kDeflateAtMost : sizeof(double);  // a byte may become a double
    const int64_t held = std::max(checked_product({stored, widened}).value_or(stored), kUnwritten);
    if (bytes.value_or(held + 1) > held || __builtin_add_overflow(claimed, *bytes, &claimed)) {
      fail(path, fmt::format("claims {} elements, more than its {} stored bytes can hold", elements, stored));
    }
  }

  void check(const std::string& path, H5L_type_t type) {
    check_link(path, type);
    const Handle object(H5Oopen(file, path.c_str(), H5P_DEFAULT));
    if (!object.valid()) fail(path, "cannot be opened" + last_complaint());
    if (H5Iget_type(object.id()) == H5I_DATASET) check_dataset(path, object.id());
  }
};

herr_t visit(hid_t, const char* path, const H5L_info_t* link, void* data) {
  Walk& walk = *static_cast<Walk*>(data);
  try {
    walk.check(path, link->type);
    return 0;
  } catch (...) {  // no exception may pass through HDF5
    walk.thrown = std::current_exception();
    return -1;
  }
}

}  // namespace

void require_contained(int64_t file, const std::string& name) {
  hsize_t size = 0;
  if (H5Fget_filesize(file, &size) < 0) throw ReportError(fmt::format("{}: has no readable size", name));
  Walk walk{.name = name, .file = file, .file_bytes = static_cast<int64_t>(size)};
  const herr_t walked = H5Lvisit(file, H5_INDEX_NAME, H5_ITER_NATIVE, visit, &walk);
  if (walk.thrown) std::rethrow_exception(walk.thrown);
  if (walked < 0)
    throw ReportError(fmt::format("{}: is damaged, its objects cannot be listed{}", name, last_complaint()));
  if (walk.claimed > checked_product({walk.file_bytes, kDeflateAtMost}).value_or(INT64_MAX)) {
    throw ReportError(fmt::format("{}: claims {} bytes of data, more than a file of {} bytes can hold", name,
                                  walk.claimed, walk.file_bytes));
  }
}

}  // namespace splash::report::hdf5
