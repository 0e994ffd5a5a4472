#pragma once
// How the screened implementation deals out its work: what its loops and its trace share.

#include <cstdint>

#include "cpu_ref/attention/screening/tile.h"

namespace splash::cpu_ref::screening {

// Queries of one task. A panel of keys (8 KiB at head_dim 64) stays in L1 while it meets all of them.
constexpr int64_t kBlockRows = kTileRows * (48 / kTileRows);

// The first keys of a block, taken as a whole: their bound spares most of the later hits.
constexpr int64_t kFirstPanels = 256 / kPanelKeys;

// Rows, and keys, of one task of backward.
constexpr int64_t kBackwardRows = 64, kBackwardKeys = 64;

}  // namespace splash::cpu_ref::screening
