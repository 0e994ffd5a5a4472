#pragma once
// Which recorded kernels walk over tiles of keys, and how they number their blocks.

#include <optional>

#include "analysis/cache/walk.h"
#include "analysis/roofline.h"

namespace splash::analysis {

// Nothing where the kernel's blocks do something else: several kernels a call, selected keys, scores that are
// stored between.
std::optional<TileWalk> walk_of(const KernelCase& kernel);

}  // namespace splash::analysis
