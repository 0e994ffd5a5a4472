#pragma once
// K_KEEP: a row keeps its k_keep largest scores, of equal ones those of the lowest keys. They are in its
// list, or the list has its whole support, and that has at most k_keep keys: the screen's bound is at most
// tau of all keys, or less than the k_keep-th largest score (Screen::bound_from).

#include <cstdint>

#include "gpu/entmax/hopper/solve/joined_lists.cuh"
#include "gpu/entmax/math/ordered_bits.h"

namespace splash::gpu::entmax::hopper {

// The scores of a list of more than k_keep entries that are not among its k_keep largest become -inf. By the
// whole warp.
template <class Lists>
__device__ __forceinline__ void keep_largest(Lists& lists, const int (&listed)[Lists::kMost], int start,
                                             int length, int k_keep) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto bits_of = [&](int i) { return ordered_bits(lists.scores[start + i]); };
  const auto key_of = [&](int i) { return static_cast<int>(key_of_entry(listed[start + i])); };
  const auto count = [&](const auto& holds) {
    int entries = 0;
    for (int i = lane; i < length; i += 32) entries += holds(i) ? 1 : 0;
    return __reduce_add_sync(kWarp, entries);
  };
  // At least k_keep scores are at least `least`, fewer at least `above`.
  uint32_t least = 0xFFFFFFFF, above = 0;
  for (int i = lane; i < length; i += 32) {
    least = min(least, bits_of(i));
    above = max(above, bits_of(i));
  }
  least = __reduce_min_sync(kWarp, least);
  above = __reduce_max_sync(kWarp, above) + 1;
  while (above - least > 1) {
    const uint32_t middle = least + (above - least) / 2;
    const int entries = count([&](int i) { return bits_of(i) >= middle; });
    (entries >= k_keep ? least : above) = middle;
    if (entries == k_keep) break;
  }
  int last = static_cast<int>(kMostKeys);  // the last key of those that have the least score and are kept
  const int larger = count([&](int i) { return bits_of(i) > least; });
  if (larger + count([&](int i) { return bits_of(i) == least; }) > k_keep) {
    int before = -1;  // up to there, too few have it
    while (last - before > 1) {
      const int middle = before + (last - before) / 2;
      const int entries = count([&](int i) { return bits_of(i) == least && key_of(i) <= middle; });
      (larger + entries >= k_keep ? last : before) = middle;
    }
  }
  __syncwarp();  // all have read
  for (int i = lane; i < length; i += 32) {
    const bool kept = bits_of(i) > least || (bits_of(i) == least && key_of(i) <= last);
    if (!kept) lists.scores[start + i] = -INFINITY;
  }
}

// Cuts the lists of the rows that have more than k_keep entries with p > 0. first, second: of the calling
// lane's rows, what solve_rows takes and gives: where the list starts, how long it is, and its entries with
// p > 0; by value, for an address would keep them in memory. Whether there was such a row: then tau is to be
// solved for again. By the whole warp; not inlined, for few rows are so broad.
template <class Lists>
__device__ __noinline__ bool cut_rows(Lists& lists, const int (&listed)[Lists::kMost], Share share,
                                      int3 first, int3 second, int k_keep) {
  bool any = false;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int3 row = half == 0 ? first : second;
    unsigned broad = __ballot_sync(kWarp, share.works && share.lane == 0 && row.z > k_keep);
    any |= broad != 0;
    for (; broad != 0; broad &= broad - 1) {
      const int from = __ffs(static_cast<int>(broad)) - 1;
      keep_largest(lists, listed, __shfl_sync(kWarp, row.x, from), __shfl_sync(kWarp, row.y, from), k_keep);
    }
  }
  __syncwarp();  // scores
  return any;
}

}  // namespace splash::gpu::entmax::hopper
