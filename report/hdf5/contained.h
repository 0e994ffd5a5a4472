#pragma once
// Checks that a file refers to nothing outside itself and claims no more data than it stores. Private to this
// folder.

#include <cstdint>
#include <string>

namespace splash::report::hdf5 {

// Checks every object before any data is read. Throws ReportError for whatever makes HDF5 open another file
// or load code: links other than hard ones, external storage, virtual datasets, filters that are plugins.
// Also throws for datasets that claim more bytes than the file can hold. splash_attention/files/contained.py
// has the same messages.
void require_contained(int64_t file, const std::string& name);

}  // namespace splash::report::hdf5
