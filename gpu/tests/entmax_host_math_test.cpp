// The arithmetic that the flagship's kernels share with the host: the bound of tau, its root, and the order
// of floats' bits. Needs no device.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "gpu/entmax/entmax.h"
#include "gpu/entmax/math/threshold_root.h"
#include "gpu/entmax/portable/bound.h"

using namespace splash;
using namespace splash::gpu::entmax;
using portable::Bound;
using portable::DigitSearch;

namespace {

// tau of scores, in the units of z = gain * score.
double exact_tau(const std::vector<float>& scores, float alpha, float gain) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const float x : scores) largest = std::max(largest, static_cast<double>(x));
  double low = -1, high = 0;  // of tau - gain * largest score
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    double sum = 0;
    for (const float x : scores) {
      const double u = static_cast<double>(gain) * (static_cast<double>(x) - largest) - middle;
      if (u > 0) sum += std::pow(u, 1 / (static_cast<double>(alpha) - 1));
    }
    (sum >= 1 ? low : high) = middle;
  }
  return low + static_cast<double>(gain) * largest;
}

struct Sums {
  float sum = 0, slope = 0;
};
Sums sums_of(const Entmax& entmax, const std::vector<float>& scores, float largest, float shift) {
  Sums sums;
  for (const float x : scores) {
    const float u = std::fma(entmax.gain, x - largest, shift);
    sums.sum += entmax.weight(u);
    sums.slope += entmax.slope(u);
  }
  return sums;
}

enum class Rows { gaussian, near_dense, uniform, ties, huge, sink, last };

std::vector<float> draw_row(Rows kind, size_t keys, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> row;
  for (size_t i = 0; i < keys; ++i) {
    const float x = normal(random);
    row.push_back(kind == Rows::near_dense ? 0.02F * x
                  : kind == Rows::uniform  ? 3.0F
                  : kind == Rows::ties     ? std::round(2 * x)
                  : kind == Rows::huge     ? 1e6F + 1e4F * x
                  : kind == Rows::sink     ? x - (i == keys / 2 ? 0.0F : 40.0F)
                                           : 3 * x);
  }
  return row;
}

}  // namespace

TEST_CASE("the bound never passes tau, and lists above it hold the support, whatever the order of the keys") {
  std::mt19937_64 random(2);
  constexpr size_t kTile = 64;
  for (const float alpha : {1.5F, 2.0F, 1.25F, 1.75F, 1.05F, 1.01F}) {
    for (int kind = 0; kind < static_cast<int>(Rows::last); ++kind) {
      for (const size_t keys : {size_t{1}, size_t{63}, size_t{700}, size_t{5000}}) {
        CAPTURE(alpha);
        CAPTURE(kind);
        CAPTURE(keys);
        const float gain = (alpha - 1) * (kind == static_cast<int>(Rows::huge) ? 0.01F : 0.5F);
        const Entmax entmax(alpha, gain / (alpha - 1));
        const auto row = draw_row(static_cast<Rows>(kind), keys, random);
        const double tau = exact_tau(row, alpha, entmax.gain);
        Bound bound;
        std::vector<float> list;
        size_t dropped_with_weight = 0;
        for (size_t first = 0; first < keys; first += kTile) {
          std::vector<float> tile(row.begin() + static_cast<std::ptrdiff_t>(first),
                                  row.begin() + static_cast<std::ptrdiff_t>(std::min(keys, first + kTile)));
          bound.see(*std::max_element(tile.begin(), tile.end()), entmax.gain);
          list.insert(list.end(), tile.begin(), tile.end());
          for (int step = 0; step < 4; ++step) {
            const Sums sums = sums_of(entmax, list, bound.largest, bound.shift);
            bound.lower(sums.sum, sums.slope, entmax.beta);
          }
          bound.aim(entmax.gain);
          std::vector<float> kept;
          for (const float x : list) {
            if (x >= bound.threshold) {
              kept.push_back(x);
            } else {
              dropped_with_weight += static_cast<double>(entmax.gain) * static_cast<double>(x) > tau;
            }
          }
          list = kept;
        }
        CHECK(dropped_with_weight == 0);
        CHECK(bound.shift > 0);
        CHECK(bound.shift <= 1);
        const double bound_of_tau = static_cast<double>(entmax.gain) * static_cast<double>(bound.threshold);
        CHECK(bound_of_tau <= tau);
        CHECK(std::find(list.begin(), list.end(), bound.largest) != list.end());
      }
    }
  }
}

TEST_CASE("nothing seen leaves all open, -inf is below every threshold") {
  Bound bound;
  bound.see(-std::numeric_limits<float>::infinity(), 0.1F);
  CHECK(bound.threshold == std::numeric_limits<float>::lowest());
  CHECK_FALSE(-std::numeric_limits<float>::infinity() >= bound.threshold);
  bound.see(1e30F, 1e-39F);  // close to float's lower limit
  CHECK(bound.threshold >= std::numeric_limits<float>::lowest());
  CHECK(bound.shift == 1);
}

TEST_CASE("the root is found from a shift of 1 in few passes, to 1e-5 in the sum") {
  std::mt19937_64 random(3);
  int most = 0;
  for (const float alpha : {1.5F, 2.0F, 1.25F, 1.75F, 1.05F, 1.01F}) {
    for (int kind = 0; kind < static_cast<int>(Rows::last); ++kind) {
      for (const size_t keys : {size_t{1}, size_t{2}, size_t{300}, size_t{20000}}) {
        CAPTURE(alpha);
        CAPTURE(kind);
        CAPTURE(keys);
        const Entmax entmax(alpha, 0.5F);
        const auto row = draw_row(static_cast<Rows>(kind), keys, random);
        const float largest = *std::max_element(row.begin(), row.end());
        ThresholdRoot root;
        root.cap(0);
        root.shift = 1;
        const auto sums_at = [&] {  // in double; the kernels' sums by tiles are nearly as exact
          double sum = 0, slope = 0;
          for (const float x : row) {
            const float u = std::fma(entmax.gain, x - largest, root.shift);
            sum += static_cast<double>(entmax.weight(u));
            slope += static_cast<double>(entmax.slope(u));
          }
          return Sums{static_cast<float>(sum), static_cast<float>(slope)};
        };
        int passes = 0;
        for (bool settled = false; !settled && passes < 40; ++passes) {
          const Sums sums = sums_at();
          settled = root.advance(sums.sum, entmax.beta * sums.slope, entmax.beta) == Progress::settled;
        }
        most = std::max(most, passes);
        CHECK(passes < 40);
        CHECK(std::abs(sums_at().sum - 1) <= 1e-5);
      }
    }
  }
  MESSAGE("at most " << most << " passes");
}

TEST_CASE("ordered bits have the order of floats, with one zero, and come back") {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> rising{-inf, -1e30F, -2, -1, -1e-40F, 0, 1e-40F, 1, 2, 1e30F, inf};
  for (size_t i = 0; i < rising.size(); ++i) {
    CHECK(from_ordered_bits(ordered_bits(rising[i])) == rising[i]);
    if (i > 0) CHECK(ordered_bits(rising[i - 1]) < ordered_bits(rising[i]));
  }
  CHECK(ordered_bits(-0.0F) == ordered_bits(0.0F));
}

TEST_CASE("the k-th largest is found digit by digit, and how many of its equals are kept") {
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  for (const uint32_t k : {1u, 2u, 17u, 299u, 300u, 301u}) {
    for (const bool ties : {false, true}) {
      CAPTURE(k);
      CAPTURE(ties);
      std::vector<float> row;
      for (int i = 0; i < 300; ++i) row.push_back(ties ? std::round(normal(random)) : normal(random));
      DigitSearch search;
      search.begin(k);
      for (int digit = DigitSearch::kDigits - 1; digit >= 0 && search.limited; --digit) {
        uint32_t counts[DigitSearch::kBins] = {};
        for (const float x : row) {
          const int bin = search.bin(ordered_bits(x), digit);
          if (bin >= 0) ++counts[bin];
        }
        search.take(counts);
      }
      CHECK(search.limited == (k <= 300));
      if (!search.limited) continue;
      std::sort(row.begin(), row.end(), std::greater<>());
      const float expected = row[k - 1];
      CHECK(from_ordered_bits(search.prefix) == expected);
      const auto above = std::count_if(row.begin(), row.end(), [&](float x) { return x > expected; });
      CHECK(search.need == k - above);
      CHECK(search.ties == std::count(row.begin(), row.end(), expected));
    }
  }
}

TEST_CASE("of equal scores the lower key stands first, and bits are counted from the lowest") {
  CHECK(portable::precedes(2, 9, 1, 3));
  CHECK(portable::precedes(1, 3, 1, 9));
  CHECK(portable::precedes(-0.0F, 3, 0.0F, 9));
  CHECK_FALSE(portable::precedes(1, 9, 1, 3));
  CHECK_FALSE(portable::precedes(1, 3, 1, 3));
  CHECK(portable::nth_set_bit(0b10110, 0) == 1);
  CHECK(portable::nth_set_bit(0b10110, 2) == 4);
  CHECK(portable::nth_set_bit(uint64_t{1} << 63, 0) == 63);
  CHECK(portable::nth_set_bit(~uint64_t{0}, 63) == 63);
}
