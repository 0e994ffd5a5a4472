#include "experiments/runner/toml_limits.h"

#include <string_view>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::experiments {
namespace {

constexpr int kMostParts = 16;

bool is_bare(char c) {
  constexpr std::string_view kMarks = "_-+";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         kMarks.find(c) != std::string_view::npos;
}

// The place behind a quoted part that begins at `at`, or behind its quote where it has no end in the line.
size_t behind_quoted(const std::string& text, size_t at) {
  const char quote = text[at];
  for (size_t i = at + 1; i < text.size() && text[i] != '\n'; ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (text[i] == quote) {
      return i + 1;
    }
  }
  return at + 1;
}

}  // namespace

// Counts along "part . part . part", wherever it stands; what is no key (a number, a sentence) has few such
// dots.
void require_toml_limits(const std::string& text, const std::string& file) {
  if (static_cast<int64_t>(text.size()) > kMostTomlBytes)
    throw InvalidArgument(
        fmt::format("{}: {} bytes of TOML; allowed are {}", file, text.size(), kMostTomlBytes));
  int line = 1, dots = 0;
  bool after_part = false;  // a dot may follow
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == ' ' || c == '\t') {
      ++at;
      continue;
    }
    const bool quoted = c == '"' || c == '\'';
    if (quoted || is_bare(c)) {
      if (after_part) dots = 0;  // two parts without a dot between them: two keys
      after_part = true;
      if (quoted) {
        at = behind_quoted(text, at);
      } else {
        while (at < text.size() && is_bare(text[at])) ++at;
      }
      continue;
    }
    dots = c == '.' && after_part ? dots + 1 : 0;
    after_part = false;
    if (dots >= kMostParts)
      throw InvalidArgument(fmt::format("{}:{}: a key of more than {} dotted parts", file, line, kMostParts));
    if (c == '\n') ++line;
    ++at;
  }
}

}  // namespace splash::experiments
