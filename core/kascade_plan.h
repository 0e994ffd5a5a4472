#pragma once
// A plan of Kascade (arXiv 2512.16391): which layers of a model are anchors, and which anchor's keys each
// other layer reuses. An anchor finds, for every tile of queries and every key head, the keys with the most
// attention. The layers behind it, up to the next anchor, attend to these keys alone; each of their key heads
// takes the keys of one key head of the anchor. Layer 0 is the first anchor, and attends to all keys itself.
//
// In a file a plan is TOML: to_toml() writes it, read_kascade_plan() reads it back.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/normalizer.h"

namespace splash {

// How many keys the queries of a tile share.
struct KascadeBudget {
  int64_t tile = 32;         // queries per tile
  double share = 0.1;        // of the keys that the tile's last query sees: 0 < share <= 1
  int64_t least_keys = 128;  // keys that a tile keeps at least, if its last query sees so many

  // Keys of a tile whose last query sees `visible` keys, of which `own` stand in the tile: the share, rounded
  // up, but at least least_keys and own, and at most all.
  int64_t keys(int64_t visible, int64_t own) const;
  // The same of each tile of q_len queries over kv_len keys under a causal mask, which meets at the end.
  std::vector<int32_t> keys_of_tiles(int64_t q_len, int64_t kv_len) const;
  void validate() const;  // throws InvalidArgument

  bool operator==(const KascadeBudget&) const = default;
};

// How the tiles of a text become one number.
enum class OverTiles { mean, minimum };

struct KascadeLayer {
  int64_t anchor = 0;            // the layer whose keys this one uses; an anchor's own number
  std::vector<int64_t> heads{};  // [kv_heads]: for each key head, the anchor's key head whose keys it takes
  double importance = 1;         // 1 - cosine of the residual stream before and after attention
  double similarity = 1;         // share of the attention that falls on these keys, mean over key heads

  bool operator==(const KascadeLayer&) const = default;
};

struct KascadePlan {
  std::string model{};    // what it was made on
  std::string made_by{};  // on which texts, and how
  int64_t q_heads = 1, kv_heads = 1;
  KascadeBudget budget{};
  NormalizerKind normalizer = NormalizerKind::softmax;  // softmax or entmax
  double alpha = 1.5;                                   // of entmax
  OverTiles over_tiles = OverTiles::mean;
  std::vector<KascadeLayer> layers{};

  bool is_anchor(int64_t layer) const { return layers[layer].anchor == layer; }
  std::vector<int64_t> anchors() const;
  // Share of the heads of reusing layers that take the keys of the anchor's head of their own number. NaN if
  // every layer is an anchor.
  double identities() const;

  // Throws InvalidArgument, one sentence: layer 0 must be an anchor, each other layer must use itself or the
  // nearest anchor before it, and an anchor's heads must be its own.
  void validate() const;

  bool operator==(const KascadePlan&) const = default;
};

constexpr int64_t kMostLayers = 4096, kMostHeads = 4096;

std::string_view to_string(OverTiles over_tiles);         // "mean", "minimum"
OverTiles over_tiles_from_string(std::string_view name);  // throws InvalidArgument

std::string to_toml(const KascadePlan& plan);  // numbers are exact; throws what validate() throws
// Throw InvalidArgument that names file and line, or why the file cannot be read.
KascadePlan parse_kascade_plan(const std::string& text, const std::string& file);
KascadePlan read_kascade_plan(const std::string& path);

}  // namespace splash
