#pragma once
// A hash that tells data apart and detects damage. It is not meant for security.

#include <cstddef>
#include <cstdint>
#include <span>

namespace splash {

// 64-bit FNV-1a (Fowler, Noll, Vo 1991) of all bytes added so far.
class Fnv1a {
 public:
  constexpr Fnv1a& add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) value_ = (value_ ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
    return *this;
  }
  constexpr uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace splash
