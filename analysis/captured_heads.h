#pragma once
// What a capture says stands in softmax's place: the attribute `method` of its root, JSON that
// splash_attention.language.Method writes, as for a model after conversion to entmax.
//
//   {"schema": "splash attention method 1", "default": {"kind": "entmax", "alpha": 1.5, "factor": 0.5},
//    "layers": {"3": {"kind": "entmax", "alpha": [1.4, 1.45, ...], "factor": [0.4, ...], "k_keep": 64}}}
//
// Lists have one entry per query head of the model. Where a file holds a part of the key heads, the dataset
// /kv_head lists them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/shape.h"

namespace splash::analysis {

inline constexpr const char* kMethodSchema = "splash attention method 1";

// The query heads of one layer that a file holds.
// Which keys a row keeps (k_keep, block of entmax) is not told.
struct CapturedHeads {
  std::string kind;              // "entmax", "softmax", "top-k-softmax", ...
  std::vector<double> alpha{};   // [q_heads], each taken by entmax; empty for other kinds
  std::vector<double> factor{};  // [q_heads] of the scale, finite and above 0 in float32; empty likewise
};

// Those of a layer, by the model's number, for the shape of one of the file's calls. Nothing if the file has
// no attribute `method`. Reads the file in a process of its own first. Throws ReportError if the method is
// damaged, has no such schema, or does not fit the shape.
std::optional<CapturedHeads> read_captured_heads(const std::string& path, int64_t layer,
                                                 const AttentionShape& shape);

}  // namespace splash::analysis
