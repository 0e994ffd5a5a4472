#pragma once

#include <cstdint>
#include <string>

namespace splash::experiments {

constexpr int64_t kMostTomlBytes = 1 << 20;

// What toml++ 3.3 does not bear, refused before it reads. Throws InvalidArgument for a text that is larger,
// for control characters, which TOML forbids and which break an assertion of the parser's, and for a key of
// more than sixteen dotted parts: it goes down a level a part, and 200,000 of them are more than the stack
// holds.
void require_toml_limits(const std::string& text, const std::string& file);

}  // namespace splash::experiments
