#pragma once
// Reports to and from HDF5.

#include <string>

#include "analysis/report/report.h"

namespace splash::analysis {

// Writes to a temporary name beside `path`, flushes, syncs and renames: `path` is either whole or untouched.
// Throws ReportError (place not writable, disk full), and leaves no file of its own behind. Throws
// InvalidArgument for a report that is not one: columns of unequal length, two of one name, a name with '/'.
// Equal reports give equal bytes. Columns of one dimension are padded with NaN to the widest. Like HDF5, not
// thread-safe.
void write_report(const std::string& path, const Report& report);

// Throws ReportError: no such file, not HDF5, truncated, damaged (a checksum tells), not a report of this
// schema; says which.
Report read_report(const std::string& path);

}  // namespace splash::analysis
