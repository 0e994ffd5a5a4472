#pragma once
// Messages to a person, on stderr beside the data. A closed stderr does not stop the program.

#include <cstdio>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/text.h"

namespace splash::experiments {

inline void write_stderr(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

// Prints "splash: …" on a line of its own, without what a terminal obeys, because some words come from
// others' files.
template <class... Arguments>
void narrate(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write_stderr("splash: " + one_line(fmt::format(format, std::forward<Arguments>(arguments)...)) + "\n");
}

}  // namespace splash::experiments
