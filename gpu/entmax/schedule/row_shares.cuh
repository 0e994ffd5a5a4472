#pragma once
// The device's side of row_shares.h. By whole warps.

#include "gpu/entmax/problem.h"
#include "gpu/entmax/schedule/row_shares.h"

namespace splash::gpu::entmax {

// Listed rows of all heads.
__device__ __forceinline__ int listed_rows(const ForwardProblem& p) {
  int rows = 0;
  for (int head = static_cast<int>(threadIdx.x) % 32; head < p.heads; head += 32) rows += p.rows.counts[head];
  return __reduce_add_sync(0xFFFFFFFFu, rows);
}

// The listed rows of a head from `first` to below `end`; head -1: none.
struct RowShare {
  int head = -1, first = 0, end = 0;
};

// The share with this number, from 0, where a share has `rows` listed rows of a head. First come the heads'
// last shares, then those before these, and so on: those that see the most keys under a causal mask.
__device__ __forceinline__ RowShare row_share(const ForwardProblem& p, int rows, int number) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto shares_of = [&](int head) {
    return head < p.heads ? (p.rows.counts[head] + rows - 1) / rows : 0;
  };
  // Shares among the last `rank` of each head.
  const auto shares_among = [&](int rank) {
    int shares = 0;
    for (int head = lane; head < p.heads; head += 32) shares += min(shares_of(head), rank);
    return __reduce_add_sync(kAll, shares);
  };
  const int most = (p.q_len + rows - 1) / rows;
  if (number >= shares_among(most)) return {};
  int rank = 0;  // the largest with shares_among(rank) <= number
  for (int above = most; above - rank > 1;) {
    const int middle = (rank + above) / 2;
    (shares_among(middle) <= number ? rank : above) = middle;
  }
  int before = number - shares_among(rank);  // heads with such a share that come first
  for (int head = 0;; head += 32) {
    unsigned has = __ballot_sync(kAll, shares_of(head + lane) > rank);
    if (before >= __popc(has)) {
      before -= __popc(has);
      continue;
    }
    for (; before > 0; --before) has &= has - 1;
    head += __ffs(static_cast<int>(has)) - 1;
    const int count = p.rows.counts[head], first = ((count + rows - 1) / rows - 1 - rank) * rows;
    return {head, first, min(first + rows, count)};
  }
}

}  // namespace splash::gpu::entmax
