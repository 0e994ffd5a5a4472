#pragma once
// After the last tile, warp by warp. In: the warp's lists (screen/warp_lists.cuh) and bounds. Out: tau,
// support and output of the rows that are not deferred. The steps of finish_rows:
//
//   join_columns     The columns become lists, row after row, where key tiles were (joined_lists.cuh).
//   score_exactly    Exact scores of their entries, where the columns were (list_products.cuh).
//   solve_rows       tau by Newton's steps from the screen's bound. Under k_keep rows with more entries are
//                    cut (largest.cuh), and solved again.
//   (drop)           Entries with p = 0 go, scores become probabilities, the support is stored.
//   gather_values    output = sum of p v (list_products.cuh).
//
// Where there is no room for the lists of all rows, finish_quads takes these steps for some quads at a time.
// Lists of one quad that do not fit are thinned before (thin_lists.cuh).
// A warp works on its own lists alone: __syncwarp divides the steps, never a barrier of the block.

#include "gpu/entmax/hopper/solve/largest.cuh"
#include "gpu/entmax/hopper/solve/thin_lists.cuh"
#include "gpu/entmax/support/allocate.cuh"
#include "gpu/entmax/support/unstored.h"

namespace splash::gpu::entmax::hopper {

// A probability as the sum of two 16-bit floats, the larger one in the low half: nearly as precise as
// float32.
template <class T>
__device__ __forceinline__ uint32_t split(float p) {
  const float rest = p - unpacked<T>(arch::pack_pair<T>(p, 0)).x;
  return arch::pack_pair<T>(p, rest);
}

// Whether these solved rows together cost backward more with a stored support than as dense products. is_row,
// count: whether the lane answers for such a row, and its entries. By the whole warp.
template <class Lists>
__device__ __forceinline__ bool costs_more_stored(const ForwardProblem& p, const Entmax& entmax,
                                                  const Lists& lists, bool is_row, int count) {
  if (p.unstored_masks == nullptr) return false;
  const int rows = __popc(__ballot_sync(kWarp, is_row));
  const int entries = __reduce_add_sync(kWarp, is_row ? count : 0);
  if (!have_many_entries(rows, entries)) return false;  // as of most warps: the rest takes a while
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int seen = 0;
  bool exact = true;  // tau in float is as good as excesses
  if (is_row) {
    seen = lists.end[lane] - (p.has_ranges() ? lists.begin[lane] : 0);
    exact = fabsf(entmax.gain * (lists.solution[lane].x + lists.solution[lane].y)) <= kMostUnstoredTau;
  }
  const int keys = __reduce_add_sync(kWarp, seen);
  return __all_sync(kWarp, exact) != 0 && dense_backward_pays(rows, entries, keys);
}

// Finishes the rows of these quads; nothing is written of deferred ones. listed: memory for the joined lists.
template <class Rows, class Lists, class SomeQuads>
__device__ __forceinline__ void finish_quads(const ForwardProblem& p, int head_index, const Head& head,
                                             Lists& lists, const SomeQuads& quads,
                                             int (&listed)[Lists::kMost]) {
  const Entmax& entmax = head.entmax;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Share share(quads);
  EntryRange ranges[2];
  int start[2], length[2], entries[2];
  const auto writes = [&](int row) {
    return quads.has_row(row) && lists.query[row] >= 0 && !lists.bound[row].is_deferred();
  };
  join_columns(p.spill, lists, quads, share, listed, ranges, start, length);
  score_exactly<Rows>(p, head, lists, listed, ranges);

  Solution solution[2];
  bool are_cut = false;
  do {
    solve_rows(lists, entmax, share, start, length, solution, entries);
  } while (Lists::kKeepsLargest && !are_cut &&
           (are_cut = cut_rows(lists, listed, share, int3{start[0], length[0], entries[0]},
                               int3{start[1], length[1], entries[1]}, p.k_keep)));
  if (share.works && share.lane < 2) {  // the quad's first lane for its first row, the second for the other
    const int row = share.row(share.lane), query = lists.query[row];
    const Solution solved = share.lane == 0 ? solution[0] : solution[1];
    lists.solution[row] = {solved.largest, solved.bound, solved.inverse, 0};
    if (p.tau != nullptr && writes(row))
      p.tau[int64_t{head_index} * p.q_len + query] =
          lists.end[row] == 0 ? INFINITY : entmax.gain * (solved.largest + solved.bound);
  }
  __syncwarp();         // solutions are there; and all scores have been read, which become probabilities
  int64_t stored = -1;  // where the warp's support starts
  if (p.support.columns != nullptr) {
    // Lane r < 16 allocates for row r.
    const int of_quad = (lane % 8 - quads.first) * share.lanes;
    const int first_rows = __shfl_sync(kWarp, entries[0], of_quad);
    const int second_rows = __shfl_sync(kWarp, entries[1], of_quad);
    const int count = !quads.has_row(lane) ? 0 : lane < 8 ? first_rows : lane < kWarpRows ? second_rows : 0;
    const bool is_row = lane < kWarpRows && writes(lane);
    if (costs_more_stored(p, entmax, lists, is_row, count)) {
      const unsigned rows = __ballot_sync(kWarp, is_row);
      if (lane == 0) lists.unstored |= rows;
    }
    const int64_t offset = allocate_support(p.support, count);
    stored = __shfl_sync(kWarp, offset, 0);
    if (is_row) {
      const int64_t row = int64_t{head_index} * p.q_len + lists.query[lane];
      p.support.offsets[row] = offset;
      p.support.counts[row] = count;
    }
  }

  // Entries with p = 0 are dropped, scores become probabilities.
  auto& probabilities = reinterpret_cast<uint32_t(&)[Lists::kMost]>(lists.scores);
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const EntryRange all = half == 0 ? ranges[0] : ranges[1];
    EntryRange kept;
    kept.end = kept.first = half == 0 ? 0 : full_batches(ranges[0].end);
#pragma unroll 1
    for (int entry = all.first + lane; entry - lane < all.end; entry += 32) {
      const int one = listed[entry];
      const float score = lists.scores[entry];
      const float4 row = lists.solution[row_of_entry(one) + 8 * half];
      const Solution solved{row.x, row.y, row.z};
      const bool keeps = entry < all.end && solved.has(score);
      const unsigned keepers = __ballot_sync(kWarp, keeps);
      const int to = kept.end + __popc(keepers & ((1u << lane) - 1));
      const float excess = solved.excess(score, entmax.gain);
      __syncwarp();  // all have read
      if (keeps) {
        listed[to] = one;
        probabilities[to] = split<typename Rows::Element>(solved.inverse * entmax.weight(excess));
        if (stored >= 0) {
          p.support.columns[stored + to - kept.first] = static_cast<int>(key_of_entry(one));
          p.support.excess[stored + to - kept.first] = excess;
        }
      }
      kept.end += __popc(keepers);
      __syncwarp();  // the first kept entry is there for the padding
    }
    if (stored >= 0) stored += kept.end - kept.first;
    const int behind = kept.end + lane;
    if (behind < full_batches(kept.end)) {
      listed[behind] = listed[kept.first];
      probabilities[behind] = 0;
    }
    (half == 0 ? ranges[0] : ranges[1]) = kept;
    __syncwarp();  // entries and padding, for gather_values
  }
  gather_values<Rows>(p, head, lists, listed, ranges, writes);
}

// As finish_rows, where the lists do not fit when all are joined at once, or the warp has a slot.
template <class Rows, class Lists>
__device__ __noinline__ int finish_in_parts(const ForwardProblem& p, int head_index, const Head& head,
                                            Lists& lists, int (&listed)[Lists::kMost]) {
  spill_columns(p.spill, head, lists);  // columns are read part by part: scores of others come in their bytes
  const int keys = open_keys(lists);
  Quads quads = quads_that_fit<Lists>(0, keys);
  for (; quads.first < kQuads; quads = quads_that_fit<Lists>(quads.end, keys)) {
    if (quads.end == quads.first) return quads.end;
    finish_quads<Rows>(p, head_index, head, lists, quads, listed);
    __syncwarp();  // all are done with lists and columns
  }
  if (lists.slot >= 0) give_slot_back(p.spill, lists.slot);
  return kQuads;
}

// Finishes the warp's rows that are not deferred, up to the first quad whose lists do not fit, which it
// returns, or kQuads: finish_long_quads goes on from there. Not inlined: inlined, values that the screen's
// loop has no registers for would be spilled around it and read back from L2 here.
template <class Rows, class Lists>
__device__ __noinline__ int finish_rows(const ForwardProblem& p, int head_index, const Head& head,
                                        Lists& lists, int (&listed)[Lists::kMost]) {
  if (lists.slot < 0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int keys = 0;
    for (int pair = lists.tiles[lane]; pair < Lists::kPairs; ++pair)
      keys += keys_of_rows(static_cast<uint32_t>(lists.columns[pair][lane][0]));
    keys = of_open_rows(lists, keys);
    if (keys_of_warp(keys) <= kMostJoined<Lists>) {
      finish_quads<Rows>(p, head_index, head, lists, AllQuads{keys}, listed);
      return kQuads;
    }
  }
  return finish_in_parts<Rows>(p, head_index, head, lists, listed);
}

// Not inlined, so that thinning and finishing do not take registers from one another.
template <class Rows, class Lists>
__device__ __noinline__ void finish_part(const ForwardProblem& p, int head_index, const Head& head,
                                         Lists& lists, Quads quads, int (&listed)[Lists::kMost]) {
  finish_quads<Rows>(p, head_index, head, lists, quads, listed);
  __syncwarp();  // all are done with lists and columns
}

// Finishes the quads from `first` on, behind finish_rows. Not called there: a call would take registers from
// the loop over parts, whose code it has once more.
template <class Rows, class Lists>
__device__ __noinline__ void finish_long_quads(const ForwardProblem& p, int head_index, const Head& head,
                                               Lists& lists, int first, int (&listed)[Lists::kMost]) {
  while (first < kQuads) {
    if (!fits(lists, first)) thin_quad<Rows>(p, head_index, head, lists, first, listed);
    const Quads quads = quads_that_fit<Lists>(first, open_keys(lists));
    finish_part<Rows>(p, head_index, head, lists, quads, listed);
    first = quads.end;
  }
  give_slot_back(p.spill, lists.slot);
}

}  // namespace splash::gpu::entmax::hopper
