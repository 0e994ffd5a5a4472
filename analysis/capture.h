#pragma once
// Captured tensors: q, k and v of a model's attention, in an HDF5 file of the schema "splash capture 1".
// splash_attention.capture writes such files; `python -m splash_attention.captures` converts others.
//
//   /                 attribute schema
//   /layer            integers [layer]: the layers that are held, by the model's own numbers
//   /call-0, -1, ...  one call of the model each:
//     q               [layer, batch, q_heads, q_len, head_dim]
//     k, v            [layer, batch, kv_heads, kv_len, head_dim]
//     scale           [layer]: scores are scale * <q, k>
//     importance      [layer], where the writer was asked for it: 1 - cosine of the residual stream before
//     and
//                     after attention
//     attribute causal
//
// /kv_head and the attribute method, which some files have, are read by analysis/captured_heads.h.

#include <cstdint>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "report/hdf5/object.h"

namespace splash::analysis {

inline constexpr const char* kCaptureSchema = "splash capture 1";

struct CapturedCall {
  AttentionShape shape{};            // of one layer
  std::vector<double> scale{};       // by layer, finite and not 0
  std::vector<double> importance{};  // by layer, finite and at least 0; empty where the file has none
  bool causal = false;
};

struct Capture {
  std::vector<int64_t> layers;  // each layer once, in the order of the tensors
  std::vector<CapturedCall> calls;
};

// Reads and checks what the file says of itself, but no tensors. This function and the next one first read
// the file in a process of its own (hdf5/apart.h). They throw ReportError if the file is missing, damaged or
// no capture, or if its extents do not fit together.
Capture read_capture(const std::string& path);

// Reads q, k or v of a call. `leading` holds indices of layer, batch entry and head, as many as wanted: {2,
// 0} are the heads of layer 2's first batch entry. Returns [layers * batch, heads, length, head_dim], with
// extent 1 for each index given. Also throws ReportError if a value is not finite in float32.
Tensor<float> read_captured_tensor(const std::string& path, int64_t call, const std::string& name,
                                   const report::hdf5::Extents& leading);

}  // namespace splash::analysis
