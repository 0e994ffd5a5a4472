#include "core/selection.h"

#include <cmath>

#include <fmt/format.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/names.h"

namespace splash {
namespace {
constexpr Names<SelectionKind, 5> kSelections{
    "selection", {"all", "top_k_row", "top_k_block", "significant_blocks", "shared_keys"}};

void validate_shared_keys(const Selection& selection, const AttentionShape& shape) {
  const int64_t lists = shape.batch * shape.kv_heads * selection.tiles(shape);
  if (static_cast<int64_t>(selection.keys.size()) != checked_product({lists, selection.k_keep})) {
    throw InvalidArgument(fmt::format("shared_keys has {} entries; there must be {} lists of k_keep {}",
                                      selection.keys.size(), lists, selection.k_keep));
  }
  for (int64_t list = 0; list < lists; ++list) {
    const int32_t* const keys = selection.keys.data() + list * selection.k_keep;
    for (int64_t i = 0; i < selection.k_keep; ++i) {
      const bool pad = keys[i] == -1;
      const bool rises = i == 0 || (keys[i - 1] != -1 && keys[i] > keys[i - 1]);
      if (pad || (rises && keys[i] >= 0 && keys[i] < shape.kv_len)) continue;
      throw InvalidArgument(
          fmt::format("shared key {} of list {} is {}; the keys of a list rise strictly inside [0, {}), with "
                      "-1 only at the end",
                      i, list, keys[i], shape.kv_len));
    }
  }
}

void validate_head_k_keep(const Selection& selection, const AttentionShape& shape) {
  const std::vector<int64_t>& of_heads = selection.head_k_keep;
  if (selection.kind != SelectionKind::top_k_row) {
    throw InvalidArgument(fmt::format(
        "the selection {} has a k_keep for each head; only top_k_row takes that", to_string(selection.kind)));
  }
  if (static_cast<int64_t>(of_heads.size()) != shape.q_heads) {
    throw InvalidArgument(fmt::format("k_keep has {} entries; allowed: 1, or {} (one a query head)",
                                      of_heads.size(), shape.q_heads));
  }
  for (const int64_t of_head : of_heads) {
    if (of_head >= 0) continue;
    throw InvalidArgument(
        fmt::format("k_keep of a head is {}; allowed: at least 1, or 0 for all keys", of_head));
  }
}
}  // namespace

void Selection::validate(const AttentionShape& shape) const {
  if (k_keep < 1) throw InvalidArgument(fmt::format("k_keep is {}; it must be at least 1", k_keep));
  if (block < 1) throw InvalidArgument(fmt::format("selection block is {}; it must be at least 1", block));
  if (!std::isfinite(margin))
    throw InvalidArgument(fmt::format("selection margin is {}; it must be finite", margin));
  if (kind == SelectionKind::shared_keys) validate_shared_keys(*this, shape);
  if (!head_k_keep.empty()) validate_head_k_keep(*this, shape);
}

std::string_view to_string(SelectionKind kind) {
  return kSelections[kind];
}

SelectionKind selection_from_string(std::string_view name) {
  return kSelections.kind_of(name);
}

}  // namespace splash
