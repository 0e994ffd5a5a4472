#pragma once
// Text on its way into HDF5.

#include <string>
#include <string_view>

namespace splash::analysis::hdf5 {

// The same text, with every NUL and every byte that is not UTF-8 replaced by U+FFFD: an odd byte in, say, a
// command line must neither lose a report nor make it unreadable for Python.
std::string to_utf8(std::string_view text);

}  // namespace splash::analysis::hdf5
