#pragma once
// Which visible keys take part, before normalisation.

#include <cstdint>
#include <string_view>

namespace splash {

enum class SelectionKind {
  all,
  top_k_row,           // the k_keep largest visible scores of the row
  top_k_block,         // the k_keep largest of each key block: 8 of 64 is 87.5 % sparse (source 000)
  significant_blocks,  // key blocks whose largest z exceeds the row's threshold + margin (source 004)
};

// Equal scores: the lower key index is kept first.
struct Selection {
  SelectionKind kind = SelectionKind::all;
  int64_t k_keep = 8;
  int64_t block = 64;  // keys a block, for top_k_block and significant_blocks
  // For significant_blocks. The row's threshold is its exact tau for entmax (in units of z = (alpha-1)s),
  // 0 for the power normalizers and -inf for softmax (in units of s), so margin 0 changes no result and a
  // larger one drops blocks.
  double margin = 0;

  void validate() const;  // throws InvalidArgument for k_keep < 1, block < 1, or a margin that is not finite
};

std::string_view to_string(SelectionKind kind);
SelectionKind selection_from_string(std::string_view name);  // throws InvalidArgument

}  // namespace splash
