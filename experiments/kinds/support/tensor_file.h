#pragma once
// The user's own q, k and v as inputs of an experiment. `input` is a path relative to the working directory
// ("heads.h5"), or the name of a shipped capture ("smollm2"). HDF5 files have the schema of
// analysis/capture.h. Python (splash_attention.tensor_files) converts other files to it, once per content.

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/capture.h"
#include "experiments/runner/kind.h"

namespace splash::experiments {

const std::vector<std::string>& tensor_file_endings();  // ".h5", ".npz", ".safetensors", ".pt"
bool names_tensor_file(const std::string& input);       // by its ending, or as a shipped capture's name
bool is_of_file(const Parameters& parameters);          // whether the parameter `input` names one
bool is_set_to_file(const Parameters& parameters);      // the same if `input` may be unset or no text

struct TensorFile {
  std::string name;  // as given
  std::string hash;  // of the named file's bytes
  std::string hdf5;  // path of the HDF5 file: the named one, or the converted one
  analysis::Capture capture;

  // Both throw InvalidArgument that says what the file holds.
  const analysis::CapturedCall& call(int64_t number) const;
  size_t place_of(int64_t layer) const;  // index along the tensors' first dimension
};

// Opens the file and keeps what it says of itself for the rest of the process. Throws InvalidArgument if
// there is no such file or it cannot be converted, ReportError if it cannot be read.
const TensorFile& open_tensor_file(const std::string& input);

// The first `length` rows of every head.
Tensor<float> first_rows(const Tensor<float>& tensor, int64_t length);

// FNV-1a of the bytes, 16 hexadecimal digits. Throws InvalidArgument if `path`, which messages call `what`,
// is no regular file.
std::string file_hash(const std::string& what, const std::string& path);

}  // namespace splash::experiments
