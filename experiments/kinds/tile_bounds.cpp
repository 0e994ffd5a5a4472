// Counts the tiles of keys that a kernel could skip without reading them, by a certified bound on their
// scores, if it knew each row's tau.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include <Eigen/Core>

#include "core/error.h"
#include "core/round.h"
#include "experiments/kinds/support/reference.h"

namespace splash::experiments {
namespace {

constexpr int64_t kTile = 64;  // keys or queries per tile
// Covers the rounding of scores and tau, so that no tile is ruled out that holds a key tied with tau.
constexpr double kRounding = 1e-12;

using Matrix = RowMajorMatrix<double>;
using Row = Eigen::RowVectorXd;

// Splits rows recursively at the median of the dimension that varies most, down to tiles.
void split(const Matrix& matrix, std::span<int64_t> rows) {
  const int64_t tiles = ceil_div(std::ssize(rows), kTile);
  if (tiles <= 1) return;
  const Matrix part = matrix(rows, Eigen::all);
  Eigen::Index widest = 0;
  (part.rowwise() - part.colwise().mean()).colwise().squaredNorm().maxCoeff(&widest);
  const int64_t half = tiles / 2 * kTile;
  std::ranges::nth_element(rows, rows.begin() + half, {}, [&](int64_t row) { return matrix(row, widest); });
  split(matrix, rows.first(half));
  split(matrix, rows.subspan(half));
}

// Keys or queries in the order in which they fill tiles.
std::vector<int64_t> ordered(const Matrix& matrix, const std::string& order) {
  std::vector<int64_t> rows(matrix.rows());
  std::iota(rows.begin(), rows.end(), int64_t{0});
  if (order == "norm") {
    std::ranges::stable_sort(rows, std::greater{},
                             [&](int64_t row) { return matrix.row(row).squaredNorm(); });
  } else if (order == "split") {
    split(matrix, rows);
  }
  return rows;
}

// The summary of a tile's keys that a bound may use.
struct TileOfKeys {
  double norm;                 // the largest norm of a key
  Row centre, least, largest;  // mean, minimum and maximum per dimension
  double radius;               // the farthest key's distance from the centre

  explicit TileOfKeys(const Matrix& keys)
      : norm(keys.rowwise().norm().maxCoeff()),
        centre(keys.colwise().mean()),
        least(keys.colwise().minCoeff()),
        largest(keys.colwise().maxCoeff()),
        radius((keys.rowwise() - centre).rowwise().norm().maxCoeff()) {}
};

// An upper bound on <q, k> for every key of a tile.
struct Bound {
  const char *name, *long_name, *formula;
  double (*of)(const Row& q, double norm, const TileOfKeys& tile);
};

constexpr Bound kBounds[] = {
    {"norm", "the largest norm", "|q| max |k|",
     [](const Row&, double norm, const TileOfKeys& tile) { return norm * tile.norm; }},
    {"centre", "centre and radius", "<q, c> + |q| max |k - c|",
     [](const Row& q, double norm, const TileOfKeys& tile) {
       return q.dot(tile.centre) + norm * tile.radius;
     }},
    {"box", "the least and largest element of each dimension", "sum of max(q_i min k_i, q_i max k_i)",
     [](const Row& q, double, const TileOfKeys& tile) {
       return q.cwiseProduct(tile.least).cwiseMax(q.cwiseProduct(tile.largest)).sum();
     }},
};

// Counts the tiles that can be skipped: by a single row, and by all rows of a tile of queries.
class Skipped {
 public:
  void begin_queries(size_t tiles) { kept_.assign(tiles, 0); }
  void take_row(int64_t tile, bool skips) {
    rows_ += skips ? 1 : 0;
    kept_[tile] |= skips ? 0 : 1;
  }
  void end_queries(int64_t seen) { tiles_ += std::count(kept_.begin(), kept_.begin() + seen, 0); }

  int64_t rows() const { return rows_; }
  int64_t tiles() const { return tiles_; }

 private:
  std::vector<uint8_t> kept_;  // per tile of keys: whether some row of the current queries needs it
  int64_t rows_ = 0, tiles_ = 0;
};

class TileBounds : public HeadKind {
 public:
  std::string name() const override { return "tile-bounds"; }
  std::string summary() const override {
    return "tiles of keys that a certified bound rules out unseen, beside those that hold no support";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    auto list = input_parameters();
    list.push_back({"alpha", number, 1.5, "1", "entmax's alpha", {}});
    list.push_back(
        {"order",
         text,
         std::string("position"),
         "",
         "how keys and queries come to tiles: as they are, by falling norm, or split at medians of the "
         "dimension that varies most; other than position: without a causal mask",
         {"position", "norm", "split"}});
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    std::vector<report::ColumnInfo> list{
        {.name = "empty_tiles",
         .units = "1",
         .long_name = "share of visible 64 x 64 tiles that hold no support: what could be skipped at best",
         .formula = "tiles without p > 0 / visible tiles"},
        {.name = "empty_rows",
         .units = "1",
         .long_name = "share of visible tiles of 64 keys and one query that hold no support",
         .formula = "tiles without p > 0 / visible tiles"}};
    for (const Bound& bound : kBounds) {
      const std::string ruled_out = std::string("ruled out by ") + bound.long_name + " of their keys";
      const std::string of_row = std::string("tiles with (alpha - 1) scale (") + bound.formula + ") <= tau";
      list.push_back({.name = std::string(bound.name) + "_tiles",
                      .units = "1",
                      .long_name = "share of visible 64 x 64 tiles " + ruled_out,
                      .formula = of_row + " in every row / visible tiles"});
      list.push_back({.name = std::string(bound.name) + "_rows",
                      .units = "1",
                      .long_name = "share of visible tiles of 64 keys and one query " + ruled_out,
                      .formula = of_row + " / visible tiles"});
    }
    return list;
  }

  void check(const Parameters& p) const override {
    HeadKind::check(p);
    Normalizer{NormalizerKind::entmax, {get_number(p, "alpha")}}.validate({});
    if (get_text(p, "order") != "position" && get_flag(p, "causal"))
      throw InvalidArgument("order must be position where causal is true: the others move keys");
  }

  // Computes in double, with the exact tau. No kernel can know more.
  CaseResult evaluate(const Parameters& p) const override {
    const auto inputs = load_inputs(p);
    const auto exact = exact_entmax(p);
    const AttentionSpec spec = input_spec(p, *inputs);
    const double gain = (get_number(p, "alpha") - 1) * spec.score_scale();
    const std::string& order = get_text(p, "order");
    const Matrix k = inputs->k.matrix(0, 0), q = inputs->q.matrix(0, 0);
    const auto keys = ordered(k, order), queries = ordered(q, order);
    std::vector<TileOfKeys> tiles;
    std::vector<int64_t> tile_of(keys.size());
    for (int64_t first = 0; first < std::ssize(keys); first += kTile) {
      const auto of_tile = std::span(keys).subspan(first, std::min(kTile, std::ssize(keys) - first));
      for (const int64_t key : of_tile) tile_of[key] = std::ssize(tiles);
      tiles.emplace_back(k(of_tile, Eigen::all));
    }

    Skipped empty, by_bound[std::size(kBounds)];
    int64_t visible_rows = 0, visible_tiles = 0;
    for (int64_t first = 0; first < spec.shape.q_len; first += kTile) {
      int64_t seen = 0;  // tiles that a row of these queries sees
      empty.begin_queries(tiles.size());
      for (Skipped& of_bound : by_bound) of_bound.begin_queries(tiles.size());
      for (const int64_t query :
           std::span(queries).subspan(first, std::min(kTile, spec.shape.q_len - first))) {
        const int64_t end = spec.mask.row(spec.shape, 0, 0, query).end;  // all keys if they are reordered
        const int64_t of_row = ceil_div(end, kTile);
        seen = std::max(seen, of_row);
        visible_rows += of_row;
        std::vector<uint8_t> holds(tiles.size(), 0);
        for (int64_t i = exact->probabilities->row_offsets[query];
             i < exact->probabilities->row_offsets[query + 1]; ++i)
          holds[tile_of[exact->probabilities->columns[i]]] = 1;
        const Row row = q.row(query);
        const double norm = row.norm(), tau = exact->tau[query];
        for (int64_t tile = 0; tile < of_row; ++tile) {
          empty.take_row(tile, holds[tile] == 0);
          const double rounding = kRounding * (gain * norm * tiles[tile].norm + std::abs(tau));
          for (size_t b = 0; b < std::size(kBounds); ++b)
            by_bound[b].take_row(tile, gain * kBounds[b].of(row, norm, tiles[tile]) + rounding <= tau);
        }
      }
      visible_tiles += seen;
      empty.end_queries(seen);
      for (Skipped& of_bound : by_bound) of_bound.end_queries(seen);
    }

    CaseResult result;
    const auto fill = [&](const std::string& name, const Skipped& skipped) {
      result.numbers[name + "_tiles"] =
          static_cast<double>(skipped.tiles()) / static_cast<double>(visible_tiles);
      result.numbers[name + "_rows"] =
          static_cast<double>(skipped.rows()) / static_cast<double>(visible_rows);
    };
    fill("empty", empty);
    for (size_t b = 0; b < std::size(kBounds); ++b) fill(kBounds[b].name, by_bound[b]);
    return result;
  }
};

const TileBounds kTileBounds;
const KindRegistration kTileBoundsRegistration(kTileBounds);

}  // namespace
}  // namespace splash::experiments
