#include "gpu/entmax/problem.h"

#include <algorithm>
#include <cmath>

#include "core/round.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/schedule/block_place.h"

namespace splash::gpu::entmax {

Band band_of(const AttentionSpec& spec) {
  const AttentionShape& s = spec.shape;
  const bool causal = spec.mask.causal, hides = spec.mask.has_window(s);
  const int64_t window = spec.mask.window, place = s.kv_len - s.q_len;  // of the first query
  if (!causal && !hides) return {static_cast<int>(s.kv_len), 0};
  return {static_cast<int>(place + (causal ? 1 : window)), static_cast<int>(!hides   ? 0
                                                                            : causal ? window
                                                                                     : 2 * window - 1)};
}

int kept_keys(const AttentionSpec& spec) {
  const bool selects = spec.selection.kind == SelectionKind::top_k_row &&
                       spec.selection.head_k_keep.empty() && spec.selection.k_keep < spec.shape.kv_len;
  return selects ? static_cast<int>(spec.selection.k_keep) : 0;
}

int64_t most_visible(const AttentionSpec& spec) {
  int64_t most = spec.mask.cu_seqlens_k.empty() ? spec.shape.kv_len : 0;
  for (size_t s = 1; s < spec.mask.cu_seqlens_k.size(); ++s)
    most = std::max(most, spec.mask.cu_seqlens_k[s] - spec.mask.cu_seqlens_k[s - 1]);
  const int64_t window = band_of(spec).window;
  return window > 0 ? std::min(most, window) : most;
}

int sampled_keys(const AttentionSpec& spec, int tuned) {
  constexpr int64_t kShort = 16384, kLong = 65536, kLeast = 512;
  const int64_t visible = most_visible(spec), window = band_of(spec).window;
  if (visible > kShort) {
    const double by_cost = std::sqrt(static_cast<double>(visible) / kShort);
    const double by_memory = static_cast<double>(visible) / kLong;
    return static_cast<int>(round_up(static_cast<int64_t>(tuned * std::max(by_cost, by_memory)), kErrorKeys));
  }
  if (window == 0 || window >= tuned) return tuned;
  return static_cast<int>(std::min<int64_t>(tuned, std::max(round_up(window, kErrorKeys), kLeast)));
}

ForwardProblem problem_of(const AttentionSpec& spec, const ForwardArguments& arguments) {
  const AttentionShape& s = spec.shape;
  ForwardProblem p;
  p.q = arguments.q;
  p.k = arguments.k;
  p.v = arguments.v;
  p.out = arguments.out;
  p.tau = arguments.tau;
  p.support = arguments.support;
  p.alpha = arguments.alpha;
  p.alphas = static_cast<int>(spec.normalizer.alpha.size());
  p.heads = static_cast<int>(s.batch * s.q_heads);
  p.q_heads = static_cast<int>(s.q_heads);
  p.group = static_cast<int>(s.group());
  p.q_len = static_cast<int>(s.q_len);
  p.kv_len = static_cast<int>(s.kv_len);
  p.head_dim = static_cast<int>(s.head_dim);
  const Band band = band_of(spec);
  p.reach = band.reach;
  p.scale = static_cast<float>(spec.score_scale());
  p.k_keep = kept_keys(spec);
  p.mask = arguments.mask;
  p.window = band.window;
  if (p.window > 0 && p.mask.ranges == nullptr) p.first_block = std::max(0, p.reach - p.window) / kErrorKeys;
  const Tuning& tuning = arguments.tuning;
  p.sampled_keys = sampled_keys(spec, tuning.sampled_keys);
  p.heads_together =
      tuning.heads_together > 0 ? tuning.heads_together : heads_together(s.kv_len * s.head_dim, s.group());
  return p;
}

}  // namespace splash::gpu::entmax
