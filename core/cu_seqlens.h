#pragma once
// Packed documents (cu_seqlens of core/mask.h) from a text of their lengths.

#include <cstdint>
#include <string_view>
#include <vector>

namespace splash {

// "8x2048" is eight documents of 2048, "4096+2x512" one of 4096 before two of 512. Throws InvalidArgument
// unless each has at least 1 and they sum to `length`.
std::vector<int64_t> cu_seqlens_from_string(std::string_view lengths, int64_t length);

}  // namespace splash
