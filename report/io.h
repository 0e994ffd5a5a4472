#pragma once
// Writes reports to HDF5 and reads them back.

#include <string>

#include "report/report.h"

namespace splash::report {

// Writes to a temporary name beside `path`, flushes, syncs and renames, so `path` is either whole or
// untouched. Throws ReportError if `path` cannot be written or the disk is full; leaves no file of its own
// then. Throws InvalidArgument for an invalid report: columns of unequal length, two columns of one name, a
// name with '/'. Equal reports give equal bytes. Columns along the same second dimension are padded with NaN
// to the widest. Like HDF5, not thread-safe.
void write_report(const std::string& path, const Report& report);

// Throws ReportError that says whether the file is missing, not HDF5, truncated, damaged (by its checksum),
// not self-contained, or not a report of this schema. Reads in a child process first (report/hdf5/apart.h).
Report read_report(const std::string& path);

// Reads the report, which another program may have changed, and writes the same bytes to `to` with the
// missing checksum line added. Throws ReportError.
void seal_report(const std::string& path, const std::string& to);

}  // namespace splash::report
