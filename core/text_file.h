#pragma once

#include <cstdint>
#include <string>

namespace splash {

// Reads the whole of a file that a person named. Throws InvalidArgument, "cannot read `what` `path`: why", if
// it cannot be opened, holds more than `most_bytes`, or is not a regular file, because the content of a pipe
// or a device might never come.
std::string read_text_file(const std::string& what, const std::string& path, int64_t most_bytes);

// Throws the same if `path` is not a regular file.
void require_regular_file(const std::string& what, const std::string& path);

}  // namespace splash
