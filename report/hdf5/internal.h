#pragma once
// HDF5's own header, with helpers. Private to this folder.

#include <string>

#include <hdf5.h>

#include "report/hdf5/handle.h"

namespace splash::report::hdf5 {

// HDF5's innermost complaint about the last call, as " (HDF5: ...)"; "" if that call succeeded. Every HDF5
// call clears it, including the release of a Handle, so no temporary Handle may end between the failed call
// and this one.
std::string last_complaint();

// Silences HDF5 in this process; otherwise it prints its error stack.
void silence_hdf5();

// Variable-length UTF-8, the string type of everything written here.
Handle text_type();

}  // namespace splash::report::hdf5
