#pragma once
// Bytes that a step of decode moves between DRAM and the GPU, from the counts that the step itself returns.

#include <cstdint>

#include "core/dtype.h"
#include "core/shape.h"

namespace splash::analysis {

// Sums over the step's units. A unit is a sequence, a key head and up to eight of its rows.
struct DecodeCounts {
  double keys = 0;        // of all units
  double began = 0;       // keys of the units that began with a screen
  double screened = 0;    // keys that the screen saw
  double candidates = 0;  // of these and of the keys that start the bounds, those that were listed
  double rescored = 0;    // of the candidates, those that were scored exactly at the end
  double fell_back = 0;   // keys of the units with rows that took the dense pass
  double values =
      0;  // values read: of a row's support, or, by the dense pass, at most once for all rows of a unit
  double support = 0;  // over rows
};

struct DecodeBytes {
  double copies = 0;    // low-bit keys, scales, zero points, margins; without copies, the keys
  double start = 0;     // keys that the screen leaves out: the first, the last, the open page
  double lists = 0;     // candidates' keys and scores, written and read, if L2 does not hold them
  double rescored = 0;  // full keys of the candidates that the last bounds leave
  double fallback = 0;  // every key of the units with rows that took the dense pass
  double values = 0;
  double rows = 0;  // queries read, results written
  double total() const { return copies + start + lists + rescored + fallback + values + rows; }
};

constexpr int kDecodeUnitRows = 8;

// A key head's units read the same keys one soon after the other: keys that are screened, or scored before
// and beside the screen, or by the dense pass, count once.
DecodeBytes decode_bytes(const AttentionShape& shape, Dtype dtype, int page_size, int bits, int64_t l2_bytes,
                         const DecodeCounts& counts);

// The same of dense attention: all keys and values, queries and results.
double dense_decode_bytes(const AttentionShape& shape, Dtype dtype);

}  // namespace splash::analysis
