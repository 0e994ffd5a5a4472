#pragma once
// Reports to and from HDF5.

#include <string>

#include "report/report.h"

namespace splash::report {

// Writes to a temporary name beside `path`, flushes, syncs and renames: `path` is either whole or untouched.
// Throws ReportError (place not writable, disk full), and leaves no file of its own behind. Throws
// InvalidArgument for a report that is not one: columns of unequal length, two of one name, a name with '/'.
// Equal reports give equal bytes. Columns of one dimension are padded with NaN to the widest. Like HDF5, not
// thread-safe.
void write_report(const std::string& path, const Report& report);

// Throws ReportError: no such file, not HDF5, truncated, damaged (a checksum tells), data that the file does
// not hold itself, not a report of this schema; says which. Reads in a child process first
// (report/hdf5/apart.h).
Report read_report(const std::string& path);

// Reads the report, which another program may have changed, and writes the same bytes to `to` with the
// checksum line that they lack. Throws ReportError.
void seal_report(const std::string& path, const std::string& to);

}  // namespace splash::report
