#pragma once
// HDF5's own header, and helpers around it. Private to this folder.

#include <string>

#include <hdf5.h>

#include "report/hdf5/handle.h"

namespace splash::report::hdf5 {

// HDF5's innermost complaint about the last call, as " (HDF5: ...)", or "" where that went well. Every call
// clears it, the release of a Handle too: no temporary Handle may end between the failed call and this one.
std::string last_complaint();

// HDF5 prints its error stack unless told not to; from the first call on it is silent in this process.
void silence_hdf5();

// Variable-length UTF-8, the string type of everything written here.
Handle text_type();

}  // namespace splash::report::hdf5
