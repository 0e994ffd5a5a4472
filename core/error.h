#pragma once
// The errors of the project. Each carries one sentence: what was wrong, and what is allowed.

#include <stdexcept>
#include <string>

namespace splash {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A value that no part of the project takes. Says what was passed and what is allowed.
struct InvalidArgument : Error {
  using Error::Error;
};

// A valid request that this variant does not serve. Says which variant, which limit, and what would work
// instead.
struct Unsupported : Error {
  using Error::Error;
};

// The GPU or its driver failed, or there is none.
struct DeviceError : Error {
  using Error::Error;
};

// This build of the program lacks the requested part.
struct NotBuilt : DeviceError {
  using DeviceError::DeviceError;
};

// The GPU's memory does not suffice. Work that was enqueued before continues.
struct OutOfDeviceMemory : DeviceError {
  using DeviceError::DeviceError;
};

// A report or another HDF5 file could not be read or written.
struct ReportError : Error {
  using Error::Error;
};

}  // namespace splash
