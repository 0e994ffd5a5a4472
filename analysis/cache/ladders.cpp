#include "analysis/cache/ladders.h"

#include <string_view>

namespace splash::analysis {
namespace {

// Rungs of the wmma ladder from this one on start the longest blocks of a causal mask first
// (gpu/ladders/wmma/common.cuh, block_task).
constexpr int kFirstLongestFirst = 9;

}  // namespace

std::optional<TileWalk> walk_of(const KernelCase& kernel) {
  constexpr std::string_view kLadder = "wmma/";
  if (!kernel.implementation.starts_with(kLadder) || kernel.launches != 1) return std::nullopt;
  const int rung = std::stoi(kernel.implementation.substr(kLadder.size()));
  const AttentionShape& s = kernel.shape;
  return TileWalk{
      .heads = s.batch * s.q_heads,
      .group = s.group(),
      .q_len = s.q_len,
      .kv_len = s.kv_len,
      .row_bytes = s.head_dim * bytes_of(kernel.dtype),
      .tile_q = kernel.tile_q,
      .tile_k = kernel.tile_k,
      .causal = kernel.causal,
      .order = kernel.causal && rung >= kFirstLongestFirst ? BlockOrder::longest_first : BlockOrder::by_head};
}

}  // namespace splash::analysis
