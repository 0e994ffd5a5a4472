#pragma once
// Which visible keys take part, before normalisation.

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "core/shape.h"

namespace splash {

enum class SelectionKind {
  all,
  top_k_row,           // the k_keep largest visible scores of the row
  top_k_block,         // the k_keep largest of each key block: 8 of 64 is 87.5 % sparse (source 000)
  significant_blocks,  // key blocks whose largest z exceeds the row's threshold + margin (source 004)
  shared_keys,         // given keys, shared by a tile of queries x the query heads of a key head (Kascade)
};

// Among equal scores the lower key index is kept first.
struct Selection {
  SelectionKind kind = SelectionKind::all;
  int64_t k_keep = 8;
  int64_t block = 64;  // keys per block, for top_k_block and significant_blocks
  // For significant_blocks. The row's threshold is its exact tau for entmax (in units of z = (alpha-1)s), 0
  // for the power normalizers and -inf for softmax (in units of s). So margin 0 changes no result, and a
  // larger margin drops blocks.
  double margin = 0;
  // For shared_keys: [batch, kv_heads, tiles, k_keep], tiles = ceil(q_len / block). The keys of a tile rise
  // strictly; -1 pads the end of a shorter list. The mask still applies: a query does not see listed keys
  // that it hides.
  std::vector<int32_t> keys{};
  // For top_k_row: [q_heads], each head's own k_keep, 0 if the head keeps all keys. Empty: k_keep applies to
  // all heads.
  std::vector<int64_t> head_k_keep{};

  // For top_k_row: the most keys that a row of this head keeps.
  int64_t k_keep_of(int64_t q_head) const {
    if (head_k_keep.empty()) return k_keep;
    const int64_t of_head = head_k_keep[q_head];
    return of_head > 0 ? of_head : std::numeric_limits<int64_t>::max();
  }

  int64_t tiles(const AttentionShape& shape) const {
    return shape.q_len / block + (shape.q_len % block != 0);
  }
  // The k_keep entries of the tile that holds `query`.
  const int32_t* keys_of(const AttentionShape& shape, int64_t batch, int64_t q_head, int64_t query) const {
    return keys.data() +
           ((batch * shape.kv_heads + shape.kv_head_of(q_head)) * tiles(shape) + query / block) * k_keep;
  }

  // Throws InvalidArgument for k_keep < 1, block < 1, a margin that is not finite, shared keys of a wrong
  // number, out of range or not rising, and a head_k_keep of a wrong number, with entries below 0, or with a
  // selection other than top_k_row.
  void validate(const AttentionShape& shape) const;
};

std::string_view to_string(SelectionKind kind);
SelectionKind selection_from_string(std::string_view name);  // throws InvalidArgument

}  // namespace splash
