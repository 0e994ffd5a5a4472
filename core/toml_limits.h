#pragma once

#include <cstdint>
#include <string>

namespace splash {

constexpr int64_t kMostTomlBytes = 1 << 20;

// What toml++ 3.3 does not bound. Throws InvalidArgument for a text that is larger, or has a key of more than
// sixteen dotted parts: the parser goes down a level a part, and 200,000 of them are more than the stack
// holds.
void require_toml_limits(const std::string& text, const std::string& file);

}  // namespace splash
