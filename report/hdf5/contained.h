#pragma once
// Checks that a file refers to nothing outside itself and claims no more data than it stores. Private to this
// folder.

#include <cstdint>
#include <string>

namespace splash::report::hdf5 {

// Walks over every object before any data is read. Throws ReportError for what makes HDF5 open another file
// or load code (links other than hard ones, external storage, virtual datasets, filters that are plugins),
// and for datasets that claim more bytes than the file can hold. splash_attention/files/contained.py says the
// same sentences.
void require_contained(int64_t file, const std::string& name);

}  // namespace splash::report::hdf5
