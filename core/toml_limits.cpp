#include "core/toml_limits.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"

namespace splash {
namespace {

constexpr int kMostParts = 16;

bool is_bare(char c) {
  constexpr std::string_view kMarks = "_-+";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         kMarks.find(c) != std::string_view::npos;
}

// The position after the string that begins at `at`, on one line or between three quotes. For a string
// without an end it is the end of the text, where the parser fails, too.
size_t behind_string(const std::string& text, size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool lines = text.compare(at, 3, three) == 0;
  for (size_t i = at + (lines ? 3 : 1); i < text.size() && (lines || text[i] != '\n'); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (lines && text.compare(i, 3, three) == 0) {
      i += 3;
      for (int more = 0; more < 2 && i < text.size() && text[i] == quote; ++more) ++i;  // its last characters
      return i;
    } else if (!lines && text[i] == quote) {
      return i + 1;
    }
  }
  return text.size();
}

}  // namespace

// Counts dots in "part . part . part" anywhere in the text. Numbers have only one such dot.
void require_toml_limits(const std::string& text, const std::string& file) {
  if (static_cast<int64_t>(text.size()) > kMostTomlBytes)
    throw InvalidArgument(
        fmt::format("{}: {} bytes of TOML; allowed are {}", file, text.size(), kMostTomlBytes));
  int dots = 0;
  bool after_part = false;  // a dot may follow
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == ' ' || c == '\t') {
      ++at;
    } else if (c == '"' || c == '\'' || is_bare(c)) {
      if (after_part) dots = 0;  // two parts without a dot between them are two keys
      after_part = true;
      if (!is_bare(c)) {
        at = behind_string(text, at);
      } else {
        while (at < text.size() && is_bare(text[at])) ++at;
      }
    } else {
      dots = c == '.' && after_part ? dots + 1 : 0;
      after_part = false;
      if (dots >= kMostParts) {
        const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
        throw InvalidArgument(
            fmt::format("{}:{}: a key of more than {} dotted parts", file, line, kMostParts));
      }
      at = c == '#' ? std::min(text.find('\n', at), text.size()) : at + 1;
    }
  }
}

}  // namespace splash
