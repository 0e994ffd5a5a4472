#pragma once
// How the screened implementation divides its work. Its loops and its trace share these numbers.

#include <cstdint>

#include "cpu_ref/attention/screening/tile.h"

namespace splash::cpu_ref::screening {

// Queries per task. A panel of keys (8 KiB at head_dim 64) stays in L1 while it is multiplied by all of them.
constexpr int64_t kBlockRows = kTileRows * (48 / kTileRows);

// The first keys of a block are taken all at once. The bound that follows from them avoids most of the later
// hits.
constexpr int64_t kFirstPanels = 256 / kPanelKeys;

// Rows, and keys, per task of backward.
constexpr int64_t kBackwardRows = 64, kBackwardKeys = 64;

}  // namespace splash::cpu_ref::screening
