#pragma once
// Owns one HDF5 identifier.

#include <cstdint>
#include <utility>

namespace splash::report::hdf5 {

// An identifier of any kind (file, group, dataset, type, space, property list), released exactly once.
// Negative values stand for none.
class Handle {
 public:
  Handle() = default;
  explicit Handle(int64_t id) : id_(id) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle();

  int64_t id() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  int64_t id_ = -1;  // an hid_t, without HDF5's header
};

}  // namespace splash::report::hdf5
