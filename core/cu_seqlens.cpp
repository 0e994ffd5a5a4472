#include "core/cu_seqlens.h"

#include <charconv>

#include <fmt/format.h>

#include "core/error.h"

namespace splash {
namespace {

int64_t whole_number(std::string_view text) {  // 0 if it is none
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

}  // namespace

std::vector<int64_t> cu_seqlens_from_string(std::string_view lengths, int64_t length) {
  std::vector<int64_t> cu{0};
  const auto require = [&](bool good) {
    if (good) return;
    throw InvalidArgument(
        fmt::format("documents are '{}'; they must be lengths of at least 1 that sum to {}, written as "
                    "8x2048 or 4096+2x512",
                    lengths, length));
  };
  for (std::size_t begin = 0; begin <= lengths.size();) {
    const std::string_view part = lengths.substr(begin, lengths.find('+', begin) - begin);
    const std::size_t times = part.find('x');
    const bool several = times != std::string_view::npos;
    const int64_t count = several ? whole_number(part.substr(0, times)) : 1;
    const int64_t each = whole_number(several ? part.substr(times + 1) : part);
    require(count >= 1 && each >= 1 && each <= (length - cu.back()) / count);
    for (int64_t i = 0; i < count; ++i) cu.push_back(cu.back() + each);
    begin += part.size() + 1;
  }
  require(cu.back() == length);
  return cu;
}

}  // namespace splash
