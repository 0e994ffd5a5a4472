#pragma once
// Converts between an enumeration's values and their names, which are listed from value 0 on. Not for .cu
// files, because it needs fmt.

#include <array>
#include <string_view>

#include <fmt/ranges.h>

#include "core/error.h"

namespace splash {

template <class Kind, size_t kCount>
struct Names {
  std::string_view what;  // what the values are, for errors
  std::array<std::string_view, kCount> names;

  constexpr std::string_view operator[](Kind kind) const { return names[static_cast<size_t>(kind)]; }

  // Throws InvalidArgument if no value has this name.
  Kind kind_of(std::string_view name) const {
    for (size_t i = 0; i < kCount; ++i) {
      if (names[i] == name) return static_cast<Kind>(i);
    }
    throw InvalidArgument(fmt::format("{} '{}' is unknown; allowed: {}", what, name, fmt::join(names, ", ")));
  }
};

}  // namespace splash
