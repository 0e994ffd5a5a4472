#pragma once
// Captured tensors: q, k and v of a model's attention in an HDF5 file of the schema "splash capture 1", which
// splash_attention.capture writes and `python -m splash_attention.captures` makes of other files.
//
//   /                 attribute schema
//   /layer            integers [layer]: the layers that are held, by the model's own numbers
//   /call-0, -1, ...  one call of the model each:
//     q               [layer, batch, q_heads, q_len, head_dim]
//     k, v            [layer, batch, kv_heads, kv_len, head_dim]
//     scale           [layer]: scores are scale * <q, k>
//     attribute causal

#include <cstdint>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "report/hdf5/object.h"

namespace splash::analysis {

inline constexpr const char* kCaptureSchema = "splash capture 1";

struct CapturedCall {
  AttentionShape shape{};       // of one layer
  std::vector<double> scale{};  // by layer, finite and not 0
  bool causal = false;
};

struct Capture {
  std::vector<int64_t> layers;  // each once, in the order of the tensors
  std::vector<CapturedCall> calls;
};

// What the file says of itself, checked; tensors are not read. Both read in a process of their own first
// (hdf5/apart.h) and throw ReportError: no such file, damaged, no capture, extents that do not fit together.
Capture read_capture(const std::string& path);

// q, k or v of a call. `leading`: indices of layer, batch entry and head, any number of them: {2, 0} are the
// heads of layer 2's first batch entry. [layers * batch, heads, length, head_dim], with extents of 1 where an
// index is given. Throws ReportError also where a value is not finite in float32.
Tensor<float> read_captured_tensor(const std::string& path, int64_t call, const std::string& name,
                                   const report::hdf5::Extents& leading);

}  // namespace splash::analysis
