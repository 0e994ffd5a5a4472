#pragma once
// The checksum after the HDF5 content of a report.
//
// HDF5 1.10 trusts what it reads. In a trial one flipped bit in a report crashed or hung the reading process
// in every tenth case; other flips gave wrong numbers. So a report ends with a line of text that HDF5
// ignores: the FNV-1a hash (Fowler, Noll, Vo 1991) of all bytes before it, checked before HDF5 opens the
// file. A program that changes the report in place drops the line; the file is then read without the check.
// The hash detects damage. It does not authenticate: anyone can compute it.

#include <cstddef>
#include <string>
#include <vector>

namespace splash::report {

// Appends the checksum line to the content, for example "\nsplash-report fnv1a64 00c0ffee00c0ffee\n".
void add_seal(std::vector<std::byte>& content);

enum class Seal { absent, intact, broken };

// Also `absent` if the file cannot be read.
Seal check_seal(const std::string& path);

// Reads the whole file. Throws ReportError if it cannot be read.
std::vector<std::byte> bytes_of(const std::string& path);

}  // namespace splash::report
