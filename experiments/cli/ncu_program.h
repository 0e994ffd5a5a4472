#pragma once
// Nsight Compute's program, where it is installed.

#include <string>

namespace splash::cli {

bool is_ncu_report(const std::string& path);  // of ncu's own format, by its name: *.ncu-rep

// What `ncu --import path --csv --page raw` prints. Throws InvalidArgument if the file cannot be read, if
// there is no ncu on the PATH, or if it fails.
std::string printed_by_ncu(const std::string& path);

}  // namespace splash::cli
