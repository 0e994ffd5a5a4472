#include "gpu/entmax/checks.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "core/error.h"
#include "gpu/entmax/entmax.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

std::string not_on_hopper(const AttentionSpec& spec, Dtype dtype, bool given_thresholds) {
  if (dtype != Dtype::bf16 && dtype != Dtype::f16) return std::string(to_string(dtype));
  if (!spec.selection.head_k_keep.empty()) return "a k_keep of each head";
  if (!spec.mask.q_positions.empty()) return "positions";
  if (!spec.mask.pairs.empty()) return "a mask of pairs";
  if (spec.softcap != 0) return "a soft cap";
  if (!spec.sinks.empty()) return "sinks";
  if (spec.dropout.drops()) return "dropout";
  if (spec.bias.any()) return "a bias";
  if (given_thresholds) return "given thresholds";
  if (spec.shape.kv_len > int64_t{kMostKeys}) return "so many keys";
  return "";
}

bool takes_hopper(const AttentionSpec& spec, Dtype dtype) {
  return not_on_hopper(spec, dtype).empty();
}

ForwardPath choose_path(const AttentionSpec& spec, Dtype dtype, ForwardPath wanted, int compute_capability,
                        const Tuning& tuning, bool given) {
  // sm_90a code runs on 9.0 alone.
  const bool hopper = compute_capability == 90 && not_on_hopper(spec, dtype, given).empty();
  if (wanted == ForwardPath::hopper && !hopper) {
    throw Unsupported(
        "entmax forward's path for Hopper takes bfloat16 and float16, up to 2^28 keys, one k_keep or "
        "none, no positions, no mask of pairs, no soft cap, no sinks, no dropout, no bias, thresholds "
        "that it solves for, on compute capability 9.0; ForwardPath::fastest takes the other problems "
        "too");
  }
  if (wanted == ForwardPath::fastest && tuning.portable != 0) return ForwardPath::portable;
  return hopper && wanted != ForwardPath::portable ? ForwardPath::hopper : ForwardPath::portable;
}

bool may_leave_rows(const AttentionSpec& spec, ForwardPath path) {
  return path == ForwardPath::hopper && spec.shape.head_dim <= kMostUnstoredHeadDim && kept_keys(spec) == 0;
}

void require_forward(const AttentionSpec& spec, Dtype dtype) {
  spec.validate();
  const auto unless = [](bool holds, const std::string& sentence) {
    if (!holds) throw Unsupported("entmax forward takes " + sentence);
  };
  const AttentionShape& s = spec.shape;
  unless(dtype != Dtype::f64, "bfloat16, float16 and float32, not " + std::string(to_string(dtype)));
  unless(s.head_dim % 8 == 0 && s.head_dim <= 256,
         "head_dims that are multiples of 8 up to 256, not " + std::to_string(s.head_dim));
  unless(spec.normalizer.kind == NormalizerKind::entmax,
         "the normalizer entmax, not " + std::string(to_string(spec.normalizer.kind)));
  for (const double alpha : spec.normalizer.alpha)
    unless(attention_takes(static_cast<float>(alpha)),
           fmt::format("alpha from {} to {} (nearer to 1 float32 loses p, and softmax is as dense), not {}",
                       kLeastAttentionAlpha, kMostAttentionAlpha, alpha));
  unless(spec.selection.kind == SelectionKind::all || spec.selection.kind == SelectionKind::top_k_row,
         "all keys or the top_k_row, not the selection " + std::string(to_string(spec.selection.kind)));
  unless(spec.score_scale() > 0, "a scale above 0, not " + std::to_string(spec.scale));
  unless(spec.mask.causal || !spec.mask.has_window(s) || std::max(s.q_len, s.kv_len) <= int64_t{1} << 28,
         "windows to both sides of up to 2^28 queries and keys, not " + to_string(s));
  unless(!spec.bias.any() || std::max(s.q_len, s.kv_len) <= int64_t{1} << 28,
         "a bias with up to 2^28 queries and keys, not " + to_string(s));
  // So that neither row numbers nor a launch's block numbers overflow 32 bits.
  constexpr int64_t kMost = int64_t{1} << 31;
  unless(s.q_len <= kMost - 256 && s.batch * s.q_heads < kMost && s.rows() / 32 + s.batch * s.q_heads < kMost,
         "fewer than 2^31 queries a head, and fewer than 2^36 over all heads, not " + to_string(s));
}

void require_mask(const AttentionSpec& spec, const DeviceMask& mask) {
  const auto unless = [](bool holds, const char* part) {
    if (!holds)
      throw InvalidArgument(
          std::string("the mask has ") + part +
          ", but arguments.mask has no table of them; see gpu/entmax/arguments/mask_tables.h");
  };
  unless(spec.mask.cu_seqlens_q.empty() || mask.ranges != nullptr, "packed sequences");
  unless(spec.mask.q_positions.empty() || (mask.q_positions != nullptr && mask.k_positions != nullptr),
         "positions");
  unless(spec.mask.pairs.empty() || mask.pairs != nullptr, "pairs");
}

void require_modifications(const AttentionSpec& spec, const float* sinks, const uint64_t* seed,
                           const float* bias) {
  if (!spec.sinks.empty() && sinks == nullptr)
    throw InvalidArgument("the rows have sinks, but arguments.sinks has no table of them");
  if (spec.dropout.drops() && seed == nullptr)
    throw InvalidArgument("probabilities are dropped, but arguments.dropout_seed has no seed");
  if (spec.bias.any() && bias == nullptr)
    throw InvalidArgument("scores have a bias, but arguments.bias has no table of it");
}

void require_head_k_keep(const AttentionSpec& spec, const ForwardArguments& arguments) {
  if (spec.selection.head_k_keep.empty() || arguments.head_k_keep != nullptr) return;
  throw InvalidArgument(
      "the selection has a k_keep for each head, but arguments.head_k_keep has no table of them");
}

}  // namespace splash::gpu::entmax
