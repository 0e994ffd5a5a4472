#pragma once
// What the rungs of this ladder share besides gpu/kascade/problem.cuh: what they take, and how their walks
// through lists of keys are traced.

#include <algorithm>
#include <vector>

#include "gpu/engine/trace.h"
#include "gpu/engine/variant.h"
#include "gpu/kascade/problem.cuh"

namespace splash::gpu::kascade {

using AnyTileProblem = ProblemOf<0>;

constexpr int kLadderDim = 128;  // the largest head_dim

// Limits of a rung: all take shared keys, head_dims up to 128, and causal masks.
struct RungLimits {
  int compute_capability = 80;
  std::vector<Dtype> dtypes{Dtype::f16, Dtype::bf16};
  std::vector<int64_t> selection_blocks{kTokens};
};
inline Limits limits_of(const RungLimits& rung) {
  return {.dtypes = rung.dtypes,
          .head_dim_max = kLadderDim,
          .selections = {SelectionKind::shared_keys},
          .selection_blocks = rung.selection_blocks,
          .causal = true,
          .compute_capability = rung.compute_capability};
}

// How a rung works through a list.
struct ListWalk {
  int tile_keys = 0, padded_dim = 0;
  // Rows that a tile lacks. False: they are not read. True: copies of the last key and of the first query are
  // read.
  bool whole_tiles = false;
  bool through_l1 = false;
  int cluster = 1;  // blocks that share one item: each reads the list, and together they read each key once
  int corrections_of_row = 4;  // per step: one by each of the four threads that hold the row
};

// Traces one item after the other.
template <class AProblem = Problem>
std::vector<KernelTrace> trace_items(const AttentionSpec& spec, Dtype dtype, const KernelLaunch& kernel,
                                     int block_rows, const ListWalk& walk) {
  const AProblem p = AProblem::of(spec, block_rows);
  const TensorRows rows(spec.shape, dtype);
  const auto run = [=, lists = spec.selection.keys.data()](int64_t item, BlockTrace& trace) {
    const TileAddress at = p.address(static_cast<int>(item));
    const int32_t* const keys = lists + p.list(at) * p.k_keep;
    const int32_t* const end = std::find(keys, keys + p.k_keep, -1);
    const auto visible = std::upper_bound(keys, end, p.last_key(at)) - keys;
    for (int i = 0; i < walk.cluster; ++i) {
      trace.read(Operand::key_lists, p.list(at) * p.k_keep * int64_t{sizeof(int32_t)},
                 visible * int64_t{sizeof(int32_t)});
    }
    const int end_row = std::min(at.first_row + p.rows, p.group * p.tokens());
    const auto for_each_head = [&](const auto& use) {  // use(head, first token, tokens)
      for (int row = at.first_row, count = 0; row < end_row; row += count) {
        const int token = row % p.tokens();
        count = std::min(p.tokens() - token, end_row - row);
        use(at.kv_head * p.group + row / p.tokens(), at.tile * p.tokens() + token, count);
      }
    };
    int present = 0;
    for_each_head([&](int64_t head, int token, int count) {
      rows.read_q(trace, head, token, count);
      present += std::clamp(p.q_len - token, 0, count);
    });
    const int64_t row_bytes = rows.row_bytes(), kv_row = at.kv_head * p.kv_len;
    if (walk.whole_tiles)
      trace.read(Operand::q, at.kv_head * p.group * p.q_len * row_bytes, row_bytes, p.rows - present);
    for (int64_t begin = 0; begin < visible; begin += walk.tile_keys) {
      const int64_t stop = std::min<int64_t>(visible, begin + walk.tile_keys);
      for (const Operand operand : {Operand::k, Operand::v}) {
        for (int64_t i = begin, run = 1; i < stop; i += run) {  // neighbours in one range
          for (run = 1; i + run < stop && keys[i + run] == keys[i] + run;) ++run;
          trace.read(operand, (kv_row + keys[i]) * row_bytes, run * row_bytes);
        }
        if (walk.whole_tiles)
          trace.read(operand, (kv_row + keys[stop - 1]) * row_bytes, row_bytes,
                     begin + walk.tile_keys - stop);
      }
      trace.multiply(p.rows, walk.tile_keys, walk.padded_dim);
      trace.multiply(p.rows, walk.padded_dim, walk.tile_keys);
      trace.exponentiate(p.rows, walk.tile_keys, walk.corrections_of_row);
      trace.next_step();
    }
    for_each_head([&](int64_t head, int token, int count) { rows.write_out(trace, head, token, count); });
  };
  return {{.kernel = kernel.name,
           .blocks = p.items,
           .cluster = walk.cluster,
           .through_l1 = walk.through_l1,
           .run = run}};
}

}  // namespace splash::gpu::kascade
