#pragma once
// The model of a kernel that walks (query tile, key tile) pairs, each product in full. Compiles without nvcc.

#include "gpu/engine/variant.h"

namespace splash::gpu {

// Tiles of tile.q queries of one head by tile.k keys; a pair of tiles without a visible pair is skipped, the
// others are multiplied whole, with head_dim padded to padded_dim. Every query tile reads its K and V tiles
// from L2. Selection all or shared_keys (a tile of queries then spans `block` queries x the group's query
// heads).
Work tiled_work(const AttentionSpec& spec, Dtype dtype, const Tile& tile, int64_t padded_dim, MathUnit unit);

// Bytes of Q, K, V and O, each once: the least that DRAM must deliver.
double compulsory_bytes(const AttentionShape& shape, Dtype dtype);

}  // namespace splash::gpu
