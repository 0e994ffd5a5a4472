#include "core/kascade_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/suggest.h"

namespace splash {
namespace {

void require_between(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    throw InvalidArgument(fmt::format("{} is {}; it must be from {} to {}", name, value, least, most));
}

void require_heads(const KascadePlan& plan, int64_t number) {
  const KascadeLayer& layer = plan.layers[number];
  if (static_cast<int64_t>(layer.heads.size()) != plan.kv_heads) {
    throw InvalidArgument(fmt::format("layer {} maps {} heads; there is one for each of the {} key heads",
                                      number, layer.heads.size(), plan.kv_heads));
  }
  for (int64_t head = 0; head < plan.kv_heads; ++head) {
    if (layer.heads[head] < 0 || layer.heads[head] >= plan.kv_heads) {
      throw InvalidArgument(
          fmt::format("layer {} maps head {} to head {} of its anchor, which has heads 0 to {}", number, head,
                      layer.heads[head], plan.kv_heads - 1));
    }
    if (layer.anchor == number && layer.heads[head] != head) {
      throw InvalidArgument(
          fmt::format("layer {} is an anchor and maps head {} to head {}; an anchor's heads "
                      "use their own keys",
                      number, head, layer.heads[head]));
    }
  }
}

}  // namespace

int64_t KascadeBudget::keys(int64_t visible, int64_t own) const {
  const auto part = static_cast<int64_t>(std::ceil(share * static_cast<double>(visible)));
  return std::min(visible, std::max({part, least_keys, own}));
}

std::vector<int32_t> KascadeBudget::keys_of_tiles(int64_t q_len, int64_t kv_len) const {
  std::vector<int32_t> counts;
  for (int64_t begin = 0; begin < q_len; begin += tile) {
    const auto seen_before = [&](int64_t query) { return std::max<int64_t>(0, kv_len - q_len + query); };
    const int64_t visible = seen_before(std::min(begin + tile, q_len));
    counts.push_back(static_cast<int32_t>(keys(visible, visible - seen_before(begin))));
  }
  return counts;
}

void KascadeBudget::validate() const {
  constexpr int64_t kMost = int64_t{1} << 31;
  require_between("tile", tile, 1, kMost);
  require_between("least_keys", least_keys, 1, kMost);
  if (!(share > 0 && share <= 1))
    throw InvalidArgument(fmt::format("budget is {}; it must be above 0 and at most 1", share));
}

std::vector<int64_t> KascadePlan::anchors() const {
  std::vector<int64_t> found;
  for (int64_t layer = 0; layer < static_cast<int64_t>(layers.size()); ++layer) {
    if (is_anchor(layer)) found.push_back(layer);
  }
  return found;
}

double KascadePlan::identities() const {
  int64_t own = 0, all = 0;
  for (int64_t layer = 0; layer < static_cast<int64_t>(layers.size()); ++layer) {
    if (is_anchor(layer)) continue;
    all += kv_heads;
    for (int64_t head = 0; head < kv_heads; ++head) own += layers[layer].heads[head] == head;
  }
  return all == 0 ? std::numeric_limits<double>::quiet_NaN()
                  : static_cast<double>(own) / static_cast<double>(all);
}

void KascadePlan::validate() const {
  budget.validate();
  require_between("kv_heads", kv_heads, 1, kMostHeads);
  require_between("q_heads", q_heads, 1, kMostHeads);
  if (q_heads % kv_heads != 0) {
    throw InvalidArgument(
        fmt::format("q_heads is {}; it must be a multiple of kv_heads, {}", q_heads, kv_heads));
  }
  if (normalizer != NormalizerKind::softmax && normalizer != NormalizerKind::entmax) {
    throw InvalidArgument(
        fmt::format("normalizer is {}; a plan is for softmax or entmax", to_string(normalizer)));
  }
  if (normalizer == NormalizerKind::entmax) require_entmax_alpha(alpha);
  require_between("the number of layers", static_cast<int64_t>(layers.size()), 1, kMostLayers);
  int64_t anchor = 0;
  for (int64_t number = 0; number < static_cast<int64_t>(layers.size()); ++number) {
    const KascadeLayer& layer = layers[number];
    if (layer.anchor == number) anchor = number;
    if (layer.anchor != anchor) {
      throw InvalidArgument(
          number == 0
              ? fmt::format("layer 0 uses the keys of layer {}; it is the first anchor and uses its own",
                            layer.anchor)
              : fmt::format(
                    "layer {} uses the keys of layer {}; it may use its own or those of {}, the nearest "
                    "anchor before it",
                    number, layer.anchor, anchor));
    }
    require_heads(*this, number);
    if (!std::isfinite(layer.importance) || !std::isfinite(layer.similarity)) {
      throw InvalidArgument(fmt::format("layer {} has importance {} and similarity {}; both must be finite",
                                        number, layer.importance, layer.similarity));
    }
  }
}

std::string_view to_string(OverTiles over_tiles) {
  return over_tiles == OverTiles::mean ? "mean" : "minimum";
}

OverTiles over_tiles_from_string(std::string_view name) {
  for (const OverTiles one : {OverTiles::mean, OverTiles::minimum}) {
    if (name == to_string(one)) return one;
  }
  throw InvalidArgument(fmt::format("tiles are joined by '{}'; allowed are mean and minimum", name));
}

}  // namespace splash
