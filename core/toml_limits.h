#pragma once

#include <cstdint>
#include <string>

namespace splash {

constexpr int64_t kMostTomlBytes = 1 << 20;

// Checks limits that toml++ 3.3 does not have. Throws InvalidArgument for a text that is too large, or that
// has a key of more than sixteen dotted parts: the parser recurses once per part, and 200,000 parts overflow
// the stack.
void require_toml_limits(const std::string& text, const std::string& file);

}  // namespace splash
